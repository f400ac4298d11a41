#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mesh/layout_change.h"
#include "mesh/ragged.h"

namespace cairn::parallel {

// Hecate's sparse materialisation (Qing et al. 2025, arXiv:2502.02581; fully sharded sparse data parallelism). Each expert and its
// optimizer state have one home. For one step the most loaded experts of a layer are copied to more ranks, and their gradients are summed
// at home:
//
//   spAG: P -> P'   sparse all-gather: the values of an expert go from its home to the other holders of P'
//   spRS: P' -> P   sparse reduce-scatter, its mirror: the gradients of all holders are summed at home
//
// P' is a mesh::Ragged table, in which the first owner of an expert is its home and the others hold copies. All ranks compute it from the
// same integers (LoadWindow). Here F: load, D: coordinates along ep, t: `overlap`, m: `slots`.
//
//   t <- min(t, E), m <- min(m, t)
//   t <= m:  the t most loaded experts go to all D
//   else:    n_e = clamp(round(D m F_e / sum over the top t of F), 1, D - 1) copies of each of the top t, by descending load, until the
//            D m slots are taken: on the node with most free slots, nodes without the expert first; there on the rank with most free slots
// round: largest remainder, so that the sum stays D m at most. Ties go to the lower expert, node or rank.

// The node of each coordinate along ep.
using NodeOf = std::vector<int>;

struct CopyBudget {
  int overlap = 0;  // experts whose copies hide behind the computation before the layer (t)
  int slots = 0;    // copies that a rank has memory for (m)
};

// t = floor(T bandwidth / bytes of an expert): how many copies arrive within T.
int overlap_degree(double seconds_before_layer, double bytes_per_s, int64_t expert_bytes);

// P' from the owners and the load of one layer. `held` may already hold copies (calibration): they count as placed and take their slots.
mesh::Ragged plan_copies(const mesh::Ragged& held, std::span<const int64_t> load, const NodeOf& nodes, CopyBudget budget);

// (expert, rank) pairs of the table beyond the homes. spAG and spRS each send this many times the bytes of an expert, in all.
int64_t copies_in(const mesh::Ragged& placement);
// Those of one coordinate.
int64_t copies_at(const mesh::Ragged& placement, int coordinate);

// The hash of a table; equal on all ranks or the plans differ.
uint64_t plan_hash(const mesh::Ragged& placement);
uint64_t plan_hash(std::span<const mesh::Ragged> layers);

// The changes of a tensor of this shape whose dim `placement.dim` stacks the experts, along an axis of the mesh.
mesh::LayoutChange sparse_all_gather(const mesh::Mesh& mesh, const std::string& axis, const mesh::Ragged& placement,
                                     const std::vector<int64_t>& shape);
mesh::LayoutChange sparse_reduce_scatter(const mesh::Mesh& mesh, const std::string& axis, const mesh::Ragged& placement,
                                         const std::vector<int64_t>& shape);

// Indices of `load` by descending load, ties to the lower index; the first `count` of them.
std::vector<int> most_loaded(std::span<const int64_t> load, int count);

}  // namespace cairn::parallel
