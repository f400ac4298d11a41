#include "mesh/placement.h"

#include <algorithm>
#include <set>

#include <fmt/ranges.h>

#include "base/check.h"
#include "mesh/local_shard.h"
#include "mesh/mesh.h"

namespace cairn::mesh {
namespace {

// The pieces of a split must be [0, size), each index once.
void check_pieces(const Split& split, std::string_view axis, int64_t size) {
  std::vector<Interval> all;
  for (const std::vector<Interval>& part : split.pieces) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  int64_t covered = 0;
  for (const Interval& piece : all) {
    if (piece.length() < 0) base::fail_input("{}: split({}): {}:{} ends before it begins", axis, split.dim, piece.begin, piece.end);
    if (piece.length() == 0) continue;
    if (piece.begin < covered) base::fail_input("{}: split({}): index {} is in two parts", axis, split.dim, piece.begin);
    if (piece.begin > covered) base::fail_input("{}: split({}): {}:{} is in no part", axis, split.dim, covered, piece.begin);
    covered = piece.end;
  }
  if (covered != size) base::fail_input("{}: split({}): its parts end at {}, the dim has {} indices there", axis, split.dim, covered, size);
}

// Checks the placement at one rank's coordinates: each split against what the splits before it leave.
void check_at(const Placement& placement, const std::vector<AxisCoordinate>& axis_coordinates, const std::vector<int64_t>& shape) {
  Placement before;
  for (const Placement::OnAxis& on : placement.axes) {
    const std::vector<int64_t> left = local_shard(before, axis_coordinates, shape).local_shape();
    before.axes.push_back(on);
    local_shard({{on}}, axis_coordinates, shape);  // refuses dims out of range and a wrong number of parts
    const Split* split = std::get_if<Split>(&on.how);
    if (split && !split->pieces.empty()) check_pieces(*split, on.axis, left[static_cast<size_t>(split->dim)]);
    if (const Ragged* ragged = std::get_if<Ragged>(&on.how)) {
      const auto at = std::find_if(axis_coordinates.begin(), axis_coordinates.end(),
                                   [&](const AxisCoordinate& place) { return place.axis == on.axis; });
      check(*ragged, at == axis_coordinates.end() ? 1 : at->extent, left[static_cast<size_t>(ragged->dim)]);
    }
  }
}

}  // namespace

bool is_partial(const Placement::How& how) {
  const Ragged* ragged = std::get_if<Ragged>(&how);
  return std::holds_alternative<Partial>(how) || (ragged && ragged->partial);
}

Placement::How Placement::on(std::string_view axis) const {
  for (const OnAxis& one : axes)
    if (one.axis == axis) return one.how;
  return Replicate{};
}

std::vector<Box> boxes(const Placement& placement, const Mesh& mesh, int rank, const std::vector<int64_t>& shape) {
  if (!mesh.contains(rank)) return {};
  return local_shard(placement, mesh.axis_coordinates(rank), shape).boxes();
}

void check(const Placement& placement, const Mesh& mesh, const std::vector<int64_t>& shape) {
  std::set<std::string> seen;
  std::set<Partial::Reduce> reductions;
  for (const Placement::OnAxis& on : placement.axes) {
    if (!is_axis(on.axis)) base::fail_input("placement on axis \"{}\": the axes are {}", on.axis, fmt::join(axis_names(), ", "));
    if (!seen.insert(on.axis).second) base::fail_input("placement \"{}\" speaks of axis {} twice", to_string(placement), on.axis);
    if (!is_partial(on.how)) continue;
    const Partial* partial = std::get_if<Partial>(&on.how);
    reductions.insert(partial ? partial->reduce : Partial::Reduce::sum);
    for (const std::vector<int>& peers : mesh.groups({on.axis}))
      if (const int extent = mesh.extent_at(peers.front(), on.axis); static_cast<int>(peers.size()) != extent)
        base::fail_input("{}: partial along an axis of {} on which rank {} has {} of {} peers: mesh {}", on.axis, extent, peers.front(),
                         peers.size(), extent, to_string(mesh));
  }
  if (reductions.size() > 1)
    base::fail_input("placement \"{}\" mixes partial sums and maxima: which comes first would matter", to_string(placement));
  std::set<std::vector<std::pair<std::string, int>>> shapes;  // ranks with equal extents and coordinates on these axes are checked once
  for (int rank : mesh.members()) {
    const std::vector<AxisCoordinate> axis_coordinates = mesh.axis_coordinates(rank);
    std::vector<std::pair<std::string, int>> key;
    for (const AxisCoordinate& place : axis_coordinates)
      if (seen.contains(place.axis)) key.push_back({place.axis, place.extent * mesh.size() + place.coordinate});
    if (shapes.insert(std::move(key)).second) check_at(placement, axis_coordinates, shape);
  }
}

void check_not_partial(const Placement& placement, std::string_view what) {
  for (const Placement::OnAxis& on : placement.axes)
    if (is_partial(on.how))
      base::fail_input("{} is partial along {} ({}): redistribute it to a replicated or split placement first", what, on.axis,
                       to_string(placement));
}

}  // namespace cairn::mesh
