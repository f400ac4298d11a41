#pragma once
#include <map>
#include <string>

#include "mesh/placement.h"
#include "planner/sbp/placed_graph.h"
#include "planner/tensor_parallel/auto_tp.h"

namespace cairn::train {

struct Planned;

// The result of placement inference (planner/sbp/infer.h) for one pass of a run: a placement for every tensor, and every redistribution.
struct InferredPlacements {
  planner::PlacedGraph placed;
  std::map<std::string, mesh::Placement> parameters;  // as a Plan has them, replicated ones included
  double cheapest = 0;                                // cost of the cheapest placement
  int64_t cheapest_bytes = 0;
};

// `by_rules`: weights along tp lie as the two rules say (auto_tp.h); else the cheapest placement is searched. Along island, dp and shard,
// samples are split and parameters replicated, as training has it. Overrides come first, then plan.place. A plan with these parameters
// trains (parallel/dtensor_block.h).
InferredPlacements infer_placements(const Planned& planned, bool by_rules, const planner::CostModel& cost_model = {},
                                    planner::Overrides overrides = {});

}  // namespace cairn::train
