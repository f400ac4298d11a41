#pragma once
#include <memory>
#include <vector>

#include "mesh/swap/tensor_swapper.h"
#include "optim/optimizer.h"

namespace cairn::optim {

// Memory of state that is away between updates: one record of the swapper for each request.
std::unique_ptr<StateMemory> swapped_state_memory(mesh::TensorSwapper& swapper, memory::TierKind home);

// A rule whose pieces, gradients or state are swapped (ZeRO-Infinity's optimizer step). Group after group: what belongs to it is fetched,
// updated and written back, while the disk reads the next `ahead` groups and writes the last. The rule itself knows nothing of it.
//
//   disk      read g+1 ...... | read g+2 ...... |
//   memory    update g        | update g+1      |
//   disk      write g-1 ..... | write g ....... |
//
// `pieces`: those of `inner`, in its order; those of a group are neighbours.
std::unique_ptr<Optimizer> swap_groups(std::unique_ptr<Optimizer> inner, const std::vector<ParameterPiece>& pieces,
                                       mesh::TensorSwapper& swapper, int64_t ahead);

}  // namespace cairn::optim
