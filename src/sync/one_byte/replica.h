#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/perturb.h"
#include "model/call.h"
#include "sync/one_byte/message.h"
#include "sync/variational_problem.h"

namespace cairn::sync {

struct OneByteOptions {
  int64_t samples_per_round = 30;
  double eps = 1e-3;             // how far the weights are moved to measure a slope
  std::string noise = "normal";  // "rademacher"
  std::string code = "log8";     // "fp32", "sign": to compare with
  bool unbiased = false;         // log8 is rounded up or down by chance, right on average
  std::string scale = "mean";    // "sqrt": slopes are divided by the square root of their number
  double weight_decay = 0;       // of matrices
  double round_timeout_s = 30;
  int64_t hash_every = 64;  // rounds between two comparisons of all machines' weights
};
void check(const OneByteOptions& options);

// The mean loss at these weights on the batch that the key names, summed in fp32 or better, with nothing random about it that the key does
// not name. No gradient is asked for: any number will do.
using LossAt = std::function<double(const model::Weights& at, const BatchKey& batch)>;

// A slope of the loss: how it changes along the direction that (round, machine, sample) names.
struct Slope {
  float slope = 0;
  double above = 0, below = 0;  // the two losses
};

// One machine's copy of the weights. Directions are functions of the run, the machine, the round, the sample and the parameter's name, so
// a slope says all: every machine that applies the same rounds to the same start holds the same bits.
class OneByteReplica {
 public:
  // Borrowed. Weights are whole parameters on one device, fp32 or bf16.
  struct Model {
    const model::Weights& weights;
    std::vector<std::string> names;  // by place
    std::vector<bool> trained;
    std::vector<at::Tensor> kept = {};  // what is updated, by place; empty: get(i), which then must be a view of it
  };

  OneByteReplica(const OneByteOptions& options, uint64_t run, Model model);

  // Looks at the loss on both sides of the weights, which are not touched: each parameter is moved when the model asks for it, into
  // memory of its own that goes when the model is done with it.
  Slope measure(const LossAt& loss, uint32_t round, uint32_t machine, int64_t sample) const;
  // Moves the weights by all slopes of the round: machines in ascending order, then samples, fp32 sums.
  void apply(const RoundRecord& record);

  uint64_t hash() const;                        // of all trained weights
  std::vector<uint64_t> tensor_hashes() const;  // by place; 0 where it is not trained
  // Whoever has the same number draws the same directions, decodes slopes to the same bits, and trains the same parameters in the same way.
  uint64_t fingerprint() const;

  const OneByteOptions& options() const { return options_; }
  const Model& model() const { return model_; }
  SlopeCode code() const { return code_; }
  uint64_t run() const { return run_; }
  at::Tensor kept(size_t parameter) const;
  base::Random direction(uint32_t round, uint32_t machine, int64_t sample, int64_t parameter) const;

 private:
  OneByteOptions options_;
  uint64_t run_;
  Model model_;
  SlopeCode code_;
  kernels::Noise noise_;
};

}  // namespace cairn::sync
