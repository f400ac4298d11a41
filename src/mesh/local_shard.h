#pragma once
#include <cstdint>
#include <vector>

#include "mesh/box.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"

namespace cairn::mesh {

// What one rank holds of a tensor: per dim the intervals, in storage order. Its local tensor is dense and has them one after the other
// along each dim, so it may hold several boxes of the logical tensor.
struct LocalShard {
  std::vector<std::vector<Interval>> dims;

  std::vector<int64_t> local_shape() const;
  std::vector<Box> boxes() const;  // in storage order, none of them empty
  // Where a box of the logical tensor, inside one of boxes(), lies in the local tensor.
  Box local(const Box& logical) const;

  bool operator==(const LocalShard&) const = default;
};

// `axis_coordinates` is the rank's place: mesh.axis_coordinates(rank).
LocalShard local_shard(const Placement& placement, const std::vector<AxisCoordinate>& axis_coordinates, const std::vector<int64_t>& shape);

}  // namespace cairn::mesh
