#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/link_model.h"
#include "model/decoder/shape.h"
#include "model/model.h"

namespace cairn::comm {
class World;
}

namespace cairn::study {

// A stretch of virtual time in which something was done.
struct TimeSpan {
  std::string what;
  double begin_s = 0, end_s = 0;
};

// A model whose blocks compute what they compute, and take a declared time for it on the world's clock: the forward, the input gradient
// and the weight gradient of every attention and MLP block take `block_s` each, all else nothing. A block's time begins when what it reads
// is there. So a simulated network shows what its messages cost, and what they hide behind.
std::unique_ptr<model::Model> make_costed_model(comm::World& world, std::unique_ptr<model::Model> inner, double block_s,
                                                std::vector<TimeSpan>* computed = nullptr);

// One step of a decoder whose ranks stand along tp, on links of a model.
struct TpStepRun {
  model::DecoderShape shape;
  int tp = 4;
  comm::LinkModel link;
  double block_s = 0;
  bool training = false;              // else a forward pass
  bool overlap_residual_sums = true;  // Call::overlap_residual_sums
  int64_t batch = 1, length = 1;
};
struct TpStepTimes {
  double step_s = 0;
  std::vector<TimeSpan> computed, summed;  // on the first rank, from the begin of the step
};
TpStepTimes time_tp_step(const TpStepRun& run);

// Seconds of a token that the product's sharded generation decodes with a KV cache, batch 1: everything between two tokens, with the
// broadcast of the sampled one and the gathering of the logits.
double time_tp_token(const TpStepRun& run);

// What one sum over the ranks takes for a run's tokens, with nothing else going on.
double time_one_sum(const TpStepRun& run);

}  // namespace cairn::study
