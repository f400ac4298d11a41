// Which ranks work on which sequences in one step, as a value.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::parallel {

// One sequence of a global batch: its place in the batch (from 0; the sampler's order) and its tokens.
struct PlannedSequence {
  int64_t place = 0;
  int64_t length = 0;
  bool operator==(const PlannedSequence&) const = default;
};

// What runs as one pass on one set of ranks: a long sequence on several ranks, or several sequences side by side.
struct StepUnit {
  std::vector<int> ranks = {};                  // of the pool; the order in which they share the sequence out
  std::vector<PlannedSequence> sequences = {};  // attention stays within each of them
  int64_t micro_batch = 0;                      // where all ranks run the same number of passes: which of them; else 0
  double predicted_s = 0;                       // by the planner's costs

  int64_t tokens() const;
  bool operator==(const StepUnit&) const = default;
};

// A step of context parallelism with a degree of its own for each sequence (context.plan). The ranks of the pool are those along shard, dp
// and cp of one island, in mesh order. One rank makes the plan (planner/step_plan/), all execute it.
//
// Order: every rank runs its units in the order of `units`. So nobody waits in a circle: of the units that are not finished, all ranks of
// the first one have nothing else to do.
struct StepPlan {
  int64_t step = 0;
  int ranks = 1;              // of the pool
  int64_t micro_batches = 0;  // each rank runs so many passes, with empty ones where it has no unit (ZeRO 3); 0: only its own units
  std::vector<StepUnit> units = {};
  bool operator==(const StepPlan&) const = default;
};

// Refuses a plan that cannot be executed: ranks outside of the pool or twice in a unit, units without ranks or sequences, a place that
// is planned twice or not at all among `places`, a rank with two units in a micro-batch, micro-batches out of order.
void check(const StepPlan& plan, int64_t places);

// The indices of the units of a rank, in the order in which it runs them. Where all ranks run the same number of passes: one for each
// micro-batch, with kNoUnit for an empty pass.
inline constexpr int64_t kNoUnit = -1;
std::vector<int64_t> passes_of(const StepPlan& plan, int rank);

// The most passes that any rank runs.
int64_t max_passes(const StepPlan& plan);

// Seconds that each rank computes, by the planner's costs.
std::vector<double> predicted_load_s(const StepPlan& plan);
// When the last rank is done, if units start as soon as their ranks are free (and together, where micro-batches are counted).
double predicted_step_s(const StepPlan& plan);
// predicted_step_s over the mean of predicted_load_s: 1 is perfect balance.
double predicted_imbalance(const StepPlan& plan);

// One line of JSON, the same for equal plans; broadcast, and kept for replay. The reader refuses a text that is no plan.
std::string to_json(const StepPlan& plan);
StepPlan parse_step_plan(std::string_view text, const std::string& origin);

// Of to_json without the predictions: equal where plans mean the same work.
uint64_t plan_hash(const StepPlan& plan);

// The degrees of a plan for people: "1x8 + 2x3 + 9x1" is one unit on 8 ranks, two on 3 and nine on one.
std::string degrees_text(const StepPlan& plan);

}  // namespace cairn::parallel
