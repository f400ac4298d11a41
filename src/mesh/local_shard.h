#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/box.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"

namespace cairn::mesh {

// The shard of a tensor that one rank holds: per dim a list of intervals, in storage order. The local tensor is dense. Along each dim it
// has the intervals one after the other, so one local tensor may hold several boxes of the logical tensor.
struct LocalShard {
  std::vector<std::vector<Interval>> dims;

  std::vector<int64_t> local_shape() const;
  std::vector<Box> boxes() const;  // in storage order; empty ones are left out
  // The indices in the local tensor of a logical box, which must lie inside one of boxes().
  Box local(const Box& logical) const;

  bool operator==(const LocalShard&) const = default;
};

// The shard of the rank at these coordinates (mesh.axis_coordinates(rank)).
LocalShard local_shard(const Placement& placement, const std::vector<AxisCoordinate>& axis_coordinates, const std::vector<int64_t>& shape);

// The local tensor of a shard, cut out of the whole tensor; a view where it is one piece.
at::Tensor cut_out(const at::Tensor& whole, const LocalShard& local_shard);
// The inverse: writes a local tensor into its places of the whole one.
void put_back(const at::Tensor& whole, const LocalShard& local_shard, const at::Tensor& local);

}  // namespace cairn::mesh
