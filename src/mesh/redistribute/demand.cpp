#include "mesh/redistribute/demand.h"

#include "mesh/local_shard.h"

namespace cairn::mesh {
namespace {

bool splits(const Placement::How& how) {
  const Ragged* ragged = std::get_if<Ragged>(&how);
  return std::holds_alternative<Split>(how) || (ragged && !ragged->partial);
}

Placement at_homes(Placement placement) {
  for (Placement::OnAxis& on : placement.axes)
    if (Ragged* ragged = std::get_if<Ragged>(&on.how)) *ragged = homes(*ragged);
  return placement;
}

// Whether the axis has one size in all parts. If not, a coordinate's old box may lie outside the group that has to add up to it.
bool is_even_along(const Mesh& mesh, const std::string& axis) {
  std::set<int> extents;
  for (int rank : mesh.members()) extents.insert(mesh.extent_at(rank, axis));
  return extents.size() == 1;
}

}  // namespace

Demand::Demand(const LayoutChange& change) : change_(change), to_(change.to.placement) {
  const bool same_mesh = change.from.mesh == change.to.mesh;
  for (Placement::OnAxis& on : to_.axes) {
    if (!is_partial(on.how) || stays_partial(change, on.axis)) continue;
    if (Ragged* ragged = std::get_if<Ragged>(&on.how)) {
      *ragged = homes(*ragged);
      continue;
    }
    const Placement::How before = change.from.placement.on(on.axis);
    const bool maximum = std::get<Partial>(on.how).reduce == Partial::Reduce::max;
    if (same_mesh && splits(before) && is_even_along(change.from.mesh, on.axis)) {
      fixed_.push_back(on.axis);
    } else if (!(same_mesh && maximum && std::holds_alternative<Replicate>(before))) {  // equal values are their own maximum
      at_zero_.push_back(on.axis);
    }
  }
  if (fixed_.empty()) return;
  for (const std::string& axis : axis_names())  // each replica has regions of its own: unequal parts are cut differently
    if (std::holds_alternative<Replicate>(change.from.placement.on(axis))) fixed_.push_back(axis);
  const Placement from = at_homes(change.from.placement);
  for (int rank : change.from.mesh.members()) {
    const std::vector<AxisCoordinate> axis_coordinates = change.from.mesh.axis_coordinates(rank);
    for (Box& box : local_shard(from, axis_coordinates, change.shape).boxes())
      regions_[coordinates(axis_coordinates, fixed_)].insert(std::move(box));
  }
}

std::vector<Box> Demand::of(int rank) const {
  const std::vector<AxisCoordinate> axis_coordinates = change_.to.mesh.axis_coordinates(rank);
  for (int coordinate : coordinates(axis_coordinates, at_zero_))
    if (coordinate != 0) return {};
  const std::vector<Box> wanted = local_shard(to_, axis_coordinates, change_.shape).boxes();
  if (fixed_.empty()) return wanted;
  std::vector<Box> kept;
  const auto region = regions_.find(coordinates(axis_coordinates, fixed_));
  if (region == regions_.end()) return {};
  for (const Box& want : wanted)
    for (const Box& own : region->second)
      if (const auto shared = intersect(want, own)) kept.push_back(*shared);
  return kept;
}

}  // namespace cairn::mesh
