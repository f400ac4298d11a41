#include "mesh/mesh.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::mesh {
namespace {

// The number of ranks under all coordinates of the last axis.
int row_size(const Mesh& mesh) {
  if (mesh.parts.empty()) return mesh.axes.empty() ? 1 : mesh.axes.back().size;
  return std::accumulate(mesh.parts.begin(), mesh.parts.end(), 0, [](int sum, const Mesh& part) { return sum + part.size(); });
}

// Collects the coordinates of one position, from the outermost axis inward.
void walk(const Mesh& mesh, int position, std::vector<AxisCoordinate>& axis_coordinates) {
  if (mesh.axes.empty()) return;
  int below = mesh.size();
  for (size_t i = 0; i + 1 < mesh.axes.size(); ++i) {
    below /= mesh.axes[i].size;
    axis_coordinates.push_back({mesh.axes[i].name, position / below % mesh.axes[i].size, mesh.axes[i].size});
  }
  const Axis& last = mesh.axes.back();
  position %= row_size(mesh);
  if (mesh.parts.empty()) {
    axis_coordinates.push_back({last.name, position, last.size});
    return;
  }
  for (size_t c = 0; c < mesh.parts.size(); ++c) {
    const int inside = mesh.parts[c].size();
    if (position < inside) {
      axis_coordinates.push_back({last.name, static_cast<int>(c), last.size});
      walk(mesh.parts[c], position, axis_coordinates);
      return;
    }
    position -= inside;
  }
}

std::vector<AxisCoordinate> axis_coordinates_at(const Mesh& mesh, int position) {
  std::vector<AxisCoordinate> axis_coordinates;
  walk(mesh, position, axis_coordinates);
  return axis_coordinates;
}

int position_of(const Mesh& mesh, int rank) {
  const auto at = mesh.ranks.empty() ? mesh.ranks.end() : std::find(mesh.ranks.begin(), mesh.ranks.end(), rank);
  const int position = mesh.ranks.empty() ? rank : static_cast<int>(at - mesh.ranks.begin());
  CAIRN_CHECK(position >= 0 && position < mesh.size(), "rank {} is not in mesh {}", rank, to_string(mesh));
  return position;
}

// The coordinates outside of the axes `along`: equal for ranks of one group. Coordinates of 0 are left out, so that an axis of size 1
// equals a missing one.
std::map<std::string, int> elsewhere(const std::vector<AxisCoordinate>& axis_coordinates, const std::vector<std::string>& along) {
  std::map<std::string, int> result;
  for (const AxisCoordinate& place : axis_coordinates)
    if (place.coordinate != 0 && std::find(along.begin(), along.end(), place.axis) == along.end()) result[place.axis] = place.coordinate;
  return result;
}

void check_shape(const Mesh& mesh, std::set<std::string> above) {
  for (const Axis& axis : mesh.axes) {
    if (!is_axis(axis.name)) base::fail_input("mesh axis \"{}\" is unknown: the axes are {}", axis.name, fmt::join(axis_names(), ", "));
    if (!above.insert(axis.name).second) base::fail_input("mesh axis \"{}\" is given twice", axis.name);
    if (axis.size < 1) base::fail_input("mesh.{} = {}: must be a whole number of at least 1", axis.name, axis.size);
  }
  if (mesh.parts.empty()) return;
  if (mesh.axes.empty()) base::fail_input("a mesh has {} parts but no axis along which they stand", mesh.parts.size());
  const Axis& last = mesh.axes.back();
  if (static_cast<int>(mesh.parts.size()) != last.size)
    base::fail_input("mesh.{} = {} lists {} parts: one for each coordinate is needed", last.name, last.size, mesh.parts.size());
  for (const Mesh& part : mesh.parts) {
    if (!part.ranks.empty()) base::fail_input("a part of mesh axis {} lists ranks: only the whole mesh may", last.name);
    check_shape(part, above);
  }
}

}  // namespace

const std::vector<std::string>& axis_names() {
  static const std::vector<std::string> names{"island", "pp", "dp", "shard", "cp", "tp", "ep"};
  return names;
}

bool is_axis(std::string_view name) { return std::find(axis_names().begin(), axis_names().end(), name) != axis_names().end(); }

int Mesh::size() const {
  int n = row_size(*this);
  for (size_t i = 0; i + 1 < axes.size(); ++i) n *= axes[i].size;
  return n;
}

bool Mesh::contains(int rank) const {
  return ranks.empty() ? rank >= 0 && rank < size() : std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<int> Mesh::members() const {
  if (!ranks.empty()) return ranks;
  std::vector<int> result(static_cast<size_t>(size()));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

int Mesh::extent(std::string_view name) const {
  for (const Axis& axis : axes)
    if (axis.name == name) return axis.size;
  std::set<int> sizes;
  for (const Mesh& part : parts) sizes.insert(part.extent(name));
  if (sizes.size() > 1) base::fail_input("mesh {} has no one size along {}: {}", to_string(*this), name, fmt::join(sizes, ", "));
  return sizes.empty() ? 1 : *sizes.begin();
}

std::vector<AxisCoordinate> Mesh::axis_coordinates(int rank) const { return axis_coordinates_at(*this, position_of(*this, rank)); }

int Mesh::extent_at(int rank, std::string_view name) const {
  for (const AxisCoordinate& place : axis_coordinates(rank))
    if (place.axis == name) return place.extent;
  return 1;
}

int Mesh::coordinate(int rank, std::string_view name) const {
  for (const AxisCoordinate& place : axis_coordinates(rank))
    if (place.axis == name) return place.coordinate;
  return 0;
}

std::vector<int> Mesh::peers(int rank, std::string_view axis) const { return peers_along(rank, {std::string(axis)}); }

std::vector<int> Mesh::peers_along(int rank, const std::vector<std::string>& along) const {
  const auto own = elsewhere(axis_coordinates(rank), along);
  const std::vector<int> all = members();
  std::vector<int> result;
  for (int position = 0; position < size(); ++position)
    if (elsewhere(axis_coordinates_at(*this, position), along) == own) result.push_back(all[static_cast<size_t>(position)]);
  return result;
}

std::vector<std::vector<int>> Mesh::groups(const std::vector<std::string>& along) const {
  std::map<std::map<std::string, int>, size_t> index;
  std::vector<std::vector<int>> result;
  const std::vector<int> all = members();
  for (int position = 0; position < size(); ++position) {
    const auto [at, fresh] = index.try_emplace(elsewhere(axis_coordinates_at(*this, position), along), result.size());
    if (fresh) result.emplace_back();
    result[at->second].push_back(all[static_cast<size_t>(position)]);
  }
  return result;
}

std::vector<int> coordinates(const std::vector<AxisCoordinate>& axis_coordinates, const std::vector<std::string>& axes) {
  std::vector<int> key;
  for (const std::string& axis : axes) {
    const auto at =
        std::find_if(axis_coordinates.begin(), axis_coordinates.end(), [&](const AxisCoordinate& place) { return place.axis == axis; });
    key.push_back(at == axis_coordinates.end() ? 0 : at->coordinate);
  }
  return key;
}

void check(const Mesh& mesh) {
  check_shape(mesh, {});
  if (mesh.ranks.empty()) return;
  if (static_cast<int>(mesh.ranks.size()) != mesh.size())
    base::fail_input("mesh {} has {} positions but lists {} ranks", to_string(mesh), mesh.size(), mesh.ranks.size());
  std::set<int> seen;
  for (int rank : mesh.ranks) {
    if (rank < 0) base::fail_input("mesh {} lists rank {}: ranks count from 0", to_string(mesh), rank);
    if (!seen.insert(rank).second) base::fail_input("mesh {} lists rank {} twice", to_string(mesh), rank);
  }
}

}  // namespace cairn::mesh
