// ByteScale, hybrid data parallelism (arXiv:2502.21231): dp and cp are one flat pool of ranks, and every sequence gets as many of them as
// it needs.
//
//   L > C   D = ceil(L / C) ranks, any number, at once (C: context.tokens_per_rank)
//   L <= C  several side by side on one rank, at most C tokens: no keys are sent. A pack is closed early where its work, not its tokens,
//           is that of a whole one: attention is quadratic
//
// Then a schedule: units on several ranks first, on the ranks that are free soonest (neighbours, within a node); packs fill the gaps they
// leave, then go to the rank that would be done first. Ranks run different numbers of passes; only the end of the step must be the same.
// While that ends the step sooner, the unit that ends last gets one more rank, or packs get smaller.
#pragma once
#include <cstdint>
#include <span>

#include "parallel/step_plan/step_plan.h"
#include "planner/step_plan/sequence_pool.h"

namespace cairn::planner {

struct BytescaleRules {
  double slack = 0.05;     // of the step's end: so much later a unit may start to stay on fewer nodes
  int64_t widenings = 64;  // how often a unit gets one more rank
};

// Plans one step. Units are in the order in which they start. Refuses what planner::check refuses.
parallel::StepPlan plan_bytescale(int64_t step, std::span<const parallel::PlannedSequence> sequences, const SequencePool& pool,
                                  const BytescaleRules& rules = {});

}  // namespace cairn::planner
