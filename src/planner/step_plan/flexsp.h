// FlexSP (arXiv:2412.01523): every micro-batch of a step has its own groups of ranks, of different sizes, so that long and short
// sequences each run at their best degree.
//
//   1. Sort the sequences by length, cut them into m runs whose largest token sum is as small as can be. Similar lengths come together.
//   2. Each run is a micro-batch: sequence_groups.h chooses its groups. A step takes the sum of its micro-batches' slowest groups.
//   3. Try m = m0 .. m0 + 4, where m0 is the least that fits; keep the fastest.
//
// Every rank runs the same number of passes, so collectives of every block (ZeRO 3) pair up.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/step_plan/step_plan.h"
#include "planner/step_plan/sequence_groups.h"

namespace cairn::planner {

struct FlexspRules {
  GroupRules groups = {};
  int64_t micro_batch_options = 5;  // numbers of micro-batches that are tried
};

struct FlexspPlan {
  parallel::StepPlan plan;
  double bound_s = 0;  // no choice of groups for these micro-batches takes less
};

// Plans one step. Groups get neighbouring ranks, and no group that a node can hold lies on two. Refuses degrees that do not add up to the
// pool's ranks, and what planner::check refuses.
FlexspPlan plan_flexsp(int64_t step, std::span<const parallel::PlannedSequence> sequences, const SequencePool& pool,
                       const FlexspRules& rules = {});

// Cuts sequences (the longest first) into `runs` consecutive runs (fewer only if there are fewer sequences) with the smallest possible
// largest sum of tokens. Returns where each run ends.
std::vector<size_t> even_runs(std::span<const parallel::PlannedSequence> sorted, int64_t runs);

}  // namespace cairn::planner
