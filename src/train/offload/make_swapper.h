#pragma once
#include <memory>

#include "mesh/swap/tensor_swapper.h"
#include "train/offload/offload_plan.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;
struct Start;

// The tiers of this rank, with their budgets taken and the swap file reserved; null where everything is on the device. Removes what a
// killed run with this run directory left on the disk. Collective over the step group. Refuses budgets that do not hold the plan, a folder
// without room or in memory, and a disk on which a step would take many times as long.
std::unique_ptr<mesh::TensorSwapper> make_swapper(Job& job, comm::World& world, const Start& start, const OffloadPlan& plan);

}  // namespace cairn::train
