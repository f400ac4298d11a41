#pragma once
#include <functional>
#include <vector>

#include "parallel/schedule.h"

namespace cairn::parallel {

// What actions wait for: a stage's output, or the gradient of its input, for one micro-batch.
struct StageResult {
  enum class Kind { output, input_gradient };
  Kind kind = Kind::output;
  int stage = 0;
  int micro_batch = 0;
};

// What must be there before an action can run, in a pipeline of so many stages.
std::vector<StageResult> needs(const Action& action, int stages);

// Refuses a schedule that cannot run: each stage must do one forward and one backward (or an input gradient and later a weight
// gradient) of each micro-batch, on the rank that the route says, in an order that ends. Where ranks would wait for each other, the
// error says which, and in what.
void check(const Schedule& schedule);

// Calls `act` for every action, in an order in which what each needs is there. Only for a schedule that passes `check`.
void in_running_order(const Schedule& schedule, const std::function<void(int rank, const Action& action)>& act);

}  // namespace cairn::parallel
