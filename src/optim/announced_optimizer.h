#pragma once
#include <memory>
#include <vector>

#include "mesh/write_barrier.h"
#include "optim/optimizer.h"

namespace cairn::optim {

// The same optimizer, which says of each piece that its parameter and its state are about to change. Where `elementwise` rules update many
// pieces at once, those whose memory is still read wait alone: the pieces before them are updated first. Other rules wait for all of a
// call.
std::unique_ptr<Optimizer> announce_writes(std::unique_ptr<Optimizer> inner, const std::vector<ParameterPiece>& pieces, bool elementwise,
                                           mesh::WriteBarrier& barrier);

}  // namespace cairn::optim
