#pragma once
#include <chrono>
#include <cstdint>
#include <span>

#include "mesh/ragged.h"
#include "parallel/expert_copies/copy_plan.h"

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// The same on all ranks, so that all decide the same.
struct LayerCosts {
  std::chrono::nanoseconds compute_row{};   // one row through an expert, forward and backward
  std::chrono::nanoseconds move_inside{};   // one row between ranks of a node, all four ways of a step
  std::chrono::nanoseconds move_between{};  // one row between nodes
  std::chrono::nanoseconds copy_expert{};   // one copy of an expert and its gradient back, not hidden by computation
};

// By what the transport says of the links and a usual speed of computation, not by the clock: a run that is repeated, or resumed, decides
// the same. `group`: the ranks along ep.
struct ExpertSize {
  int64_t elements = 0;    // of one expert
  int64_t bytes = 0;       // of them, as passes read them
  int64_t row_bytes = 0;   // of a token
  double flops_per_s = 0;  // of a rank
};
LayerCosts layer_costs(const comm::Group& group, const NodeOf& nodes, const ExpertSize& size);

// The time of a layer for these routing counts ([source][expert]): the busiest rank's computation and the busiest rank's transfers.
std::chrono::nanoseconds layer_time(const mesh::Ragged& placement, std::span<const int64_t> counts, const NodeOf& nodes,
                                    const LayerCosts& costs);

// Calibration: once the gate has decided, the plan is made again from the true counts, in the slots that are left. The result is the larger
// placement if it saves more time than its copies take, which nothing hides any more; else `planned`, unchanged.
mesh::Ragged calibrate(const mesh::Ragged& planned, std::span<const int64_t> counts, const NodeOf& nodes, CopyBudget budget,
                       const LayerCosts& costs);

}  // namespace cairn::parallel
