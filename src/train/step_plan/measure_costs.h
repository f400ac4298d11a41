// What sequences cost on these machines, measured before the first step.
#pragma once
#include <cstdint>
#include <vector>

#include "planner/step_plan/sequence_pool.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Fills in pool.costs:
//
//   a, b, c    passes of six lengths up to pool.tokens_per_rank, forward and backward, on all ranks at once; their mean is fitted. On a
//              clock that stands still while ranks compute (a simulated network), from the FLOPs of the model's cards instead
//   bandwidth  for each number of ranks: all groups of so many neighbours send what attention would, at once
//
// Parameters and optimizer stay as they are; gradients are left undefined, as between steps. Collective over the step group.
void measure_costs(Job& job, comm::World& world, planner::SequencePool& pool);

// How many neighbours in this order have faster links among them than to the others; 0: all links are the same, or there is no such order.
int ranks_per_node(comm::World& world, const std::vector<int>& ranks);

}  // namespace cairn::train
