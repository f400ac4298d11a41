#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "mesh/ragged.h"
#include "parallel/expert_copies/copy_plan.h"

namespace cairn::parallel {

// Hecate's heterogeneous sharding (Algorithm 2 of the paper): new homes for the experts of all layers at once, every few steps. J: the
// `overlap` most loaded experts of each layer, which will be copied anyway; J': the others.
//
//   layers by descending load of the hottest expert of J', in each the experts of J' by descending load:
//     home <- the least loaded node, there the least loaded rank (load so far in this layer; ties: fewer free slots, then the lower id)
//   experts of J by layer and id:
//     home <- the rank with most free slots
// Every rank owns as many experts in all as before balancing (the first ranks one more), but a layer may have none of them on a rank.
std::vector<mesh::Ragged> reshard(std::span<const mesh::Ragged> layers, std::span<const std::vector<int64_t>> load, const NodeOf& nodes,
                                  int overlap);

// Experts whose home differs: what migrates, with optimizer state.
int64_t moved_experts(std::span<const mesh::Ragged> before, std::span<const mesh::Ragged> after);

}  // namespace cairn::parallel
