// Re-sharding of Hecate (parallel/experts/copied_experts.h): experts get new homes at a step boundary, with parameters, moments and all
// other state of theirs.
#pragma once
#include <cstdint>
#include <vector>

#include "mesh/ragged.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// What a rank keeps is made again under a plan with these homes (by block with experts), and filled from what the ranks had. Old and new
// state are in memory together meanwhile. Collective over all ranks. Returns the bytes that this rank has sent.
int64_t move_experts(Job& job, comm::World& world, const std::vector<mesh::Ragged>& homes);

// Refuses optimizers that work on more than single elements.
void check_experts_can_move(const Job& job);

}  // namespace cairn::train
