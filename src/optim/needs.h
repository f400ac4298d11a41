// What an optimizer needs, as data. Every rule states its needs on its own line of the list in optimizers.cpp. Code that refuses a
// layout or adapts to a rule reads them here; it never compares optim.kind with a name.
#pragma once
#include <string>

namespace cairn::optim {

// The smallest part of a parameter that one update can work on.
enum class Granularity {
  elements,  // any slice of the flattened parameter: works with ZeRO shards and tensor-parallel slices
  matrices,  // the parameter in its own shape: ZeRO shards are cut between parameters, and ranks along tp exchange what SplitUpdate says
};

// What ranks that hold a parameter together (TensorShard) send each other in an update.
enum class SplitUpdate {
  nothing,
  matrices,  // of hidden matrices: every part to one rank, and the update back
  factors,   // sums over rows and columns, and two numbers for each parameter
};

struct OptimizerNeeds {
  Granularity granularity = Granularity::elements;
  SplitUpdate split = SplitUpdate::nothing;
  bool updates_bf16 = false;  // updates bf16 parameters itself; false: bf16_optimizer.h hands it fp32 copies
  bool adaptive = true;       // the size of a step does not follow that of the gradient, so the rate does not scale with the batch
  bool matrix_steps = false;  // the step of an element depends on its whole matrix, so it needs gradients of whole matrices
  bool on_manifolds = false;  // keeps points of the hyperboloid there
  bool bf16_moments = false;  // can keep its state in bf16 (optim.moments)

  bool elementwise() const { return granularity == Granularity::elements; }
};

// The needs of the rule called `kind` (a value of optim.kind). Refuses an unknown name and suggests the nearest.
const OptimizerNeeds& optimizer_needs(const std::string& kind);

// The rules that work element by element, for messages: "adamw or sgd".
std::string elementwise_optimizers();

}  // namespace cairn::optim
