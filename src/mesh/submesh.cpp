// Submeshes: one coordinate of an axis, or several axes as one (mesh.h).
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "mesh/mesh.h"

namespace cairn::mesh {
namespace {

// The shape that is left when one axis is fixed; the caller fills in the ranks.
Mesh without(const Mesh& mesh, std::string_view axis, int coordinate) {
  Mesh left{mesh.axes, {}, mesh.parts};
  const auto at = std::find_if(left.axes.begin(), left.axes.end(), [&](const Axis& a) { return a.name == axis; });
  const int size = at == left.axes.end() ? 1 : at->size;
  const bool inside_parts = at == left.axes.end() && !left.parts.empty();
  if (inside_parts) {
    for (Mesh& part : left.parts) part = without(part, axis, coordinate);
    return left;
  }
  if (coordinate < 0 || coordinate >= size)
    base::fail_input("mesh {} has no {} = {}: its size there is {}", to_string(mesh), axis, coordinate, size);
  if (at == left.axes.end()) return left;
  const bool last = at + 1 == left.axes.end();
  left.axes.erase(at);
  if (last && !mesh.parts.empty()) {
    const Mesh& part = mesh.parts[static_cast<size_t>(coordinate)];
    left.axes.insert(left.axes.end(), part.axes.begin(), part.axes.end());
    left.parts = part.parts;
  }
  return left;
}

}  // namespace

Mesh select(const Mesh& mesh, std::string_view axis, int coordinate) {
  if (!is_axis(axis)) base::fail_input("mesh axis \"{}\" is unknown", axis);
  Mesh chosen = without(mesh, axis, coordinate);
  for (int rank : mesh.members())
    if (mesh.coordinate(rank, axis) == coordinate) chosen.ranks.push_back(rank);
  return chosen;
}

Mesh flattened(const Mesh& mesh, const std::vector<std::string>& axes) {
  if (!mesh.parts.empty()) base::fail_input("mesh {} has unequal parts: its axes cannot be seen as one", to_string(mesh));
  CAIRN_CHECK(!axes.empty(), "no axes to flatten");
  const auto listed = [&](const Axis& axis) { return std::find(axes.begin(), axes.end(), axis.name) != axes.end(); };
  Mesh flat;
  std::vector<std::string> order;  // the old axes as the new positions count them
  for (const Axis& axis : mesh.axes) {
    if (axis.name == axes.front()) {
      flat.axes.push_back({axis.name, 1});
      for (const std::string& name : axes) flat.axes.back().size *= mesh.extent(name);
      order.insert(order.end(), axes.begin(), axes.end());
    } else if (!listed(axis)) {
      flat.axes.push_back(axis);
      order.push_back(axis.name);
    }
  }
  if (std::find(order.begin(), order.end(), axes.front()) == order.end())
    base::fail_input("mesh {} has no axis {} to flatten others into", to_string(mesh), axes.front());
  flat.ranks = mesh.members();
  std::vector<std::pair<std::vector<int>, int>> keyed;
  for (int rank : flat.ranks) {
    std::vector<int> key;
    for (const std::string& name : order) key.push_back(mesh.coordinate(rank, name));
    keyed.emplace_back(std::move(key), rank);
  }
  std::sort(keyed.begin(), keyed.end());
  std::transform(keyed.begin(), keyed.end(), flat.ranks.begin(), [](const auto& item) { return item.second; });
  return flat;
}

}  // namespace cairn::mesh
