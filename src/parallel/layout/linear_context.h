#pragma once
#include <cstdint>
#include <string>

#include "comm/link_facts.h"
#include "parallel/plan.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// What the states of linear attention along cp take, as a prediction.
struct LinearContext {
  int64_t layers = 0;       // with linear attention; 0: the rest is empty
  int64_t state_bytes = 0;  // of one layer's states of one pass on one rank, as they travel
  int64_t sent_bytes = 0;   // by a rank in the middle, for each layer and direction
  int64_t blocks = 0;       // zeco
  double exchange_s = 0;    // until the last rank has its state, computation apart
  double within_s = 0;      // attention within chunks, which needs no state from outside
  double exposed_s = 0;     // of the exchange, what computation does not hide
};

// What it is predicted for.
struct LinearPass {
  int64_t sequences = 1;
  int64_t length = 0;
  int64_t chunk = 64;
  comm::LinkFacts links = {};  // among the ranks of a group along cp
  double flops_per_s = 20e9;   // of attention on one rank
};
LinearContext predict_linear_context(const Plan& plan, const model::Model& model, const LinearPass& pass);

// "2 layers of linear attention along cp = 8: zeco in 16 blocks. ..."; empty without linear attention or cp.
std::string describe_linear_context(const Plan& plan, const model::Model& model, const LinearPass& pass);

}  // namespace cairn::parallel
