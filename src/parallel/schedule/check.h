#pragma once
#include <functional>
#include <vector>

#include "parallel/schedule.h"

namespace cairn::parallel {

// What actions wait for: the output of a stage, or the gradient of its input, for one micro-batch.
struct StageResult {
  enum class Kind { output, input_gradient };
  Kind kind = Kind::output;
  int stage = 0;
  int micro_batch = 0;
};

// What must be there before an action can run, in a pipeline of `stages` stages.
std::vector<StageResult> needs(const Action& action, int stages);

// Throws bad_input for a schedule that cannot run. Each stage must do one forward and one backward (or an input gradient and later a weight
// gradient) of each micro-batch, on the rank of the stage, in an order without deadlock. Recompute and offload lie between a forward and
// its backward, a gather before its stage, a reduce after it; each is optional and there once. In a deadlock the error lists which rank
// waits for which action of which rank.
void check(const Schedule& schedule);

// Calls `act` for every action in an order that respects all dependencies. Only for a schedule that passes `check`.
void in_running_order(const Schedule& schedule, const std::function<void(int rank, const Action& action)>& act);

}  // namespace cairn::parallel
