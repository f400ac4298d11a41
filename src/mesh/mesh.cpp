#include "mesh/mesh.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::mesh {
namespace {

constexpr std::array<std::string_view, 6> kAxes{"island", "pp", "dp", "cp", "tp", "ep"};

int position_of(const Mesh& mesh, int rank) {
  if (mesh.ranks.empty()) return rank;
  const auto at = std::find(mesh.ranks.begin(), mesh.ranks.end(), rank);
  CAIRN_CHECK(at != mesh.ranks.end(), "rank {} is not in mesh {}", rank, to_string(mesh));
  return static_cast<int>(at - mesh.ranks.begin());
}

// How many positions apart two neighbours along axis `index` lie.
int stride_of(const Mesh& mesh, size_t index) {
  int stride = 1;
  for (size_t i = index + 1; i < mesh.axes.size(); ++i) stride *= mesh.axes[i].size;
  return stride;
}

}  // namespace

int Mesh::size() const {
  int n = 1;
  for (const Axis& axis : axes) n *= axis.size;
  return n;
}

int Mesh::extent(std::string_view name) const {
  for (const Axis& axis : axes)
    if (axis.name == name) return axis.size;
  return 1;
}

int Mesh::coordinate(int rank, std::string_view name) const {
  const int position = position_of(*this, rank);
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i].name == name) return position / stride_of(*this, i) % axes[i].size;
  return 0;
}

std::vector<int> Mesh::peers(int rank, std::string_view name) const {
  const int position = position_of(*this, rank);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name != name) continue;
    const int stride = stride_of(*this, i);
    const int first = position - position / stride % axes[i].size * stride;
    std::vector<int> result;
    for (int k = 0; k < axes[i].size; ++k) {
      const int p = first + k * stride;
      result.push_back(ranks.empty() ? p : ranks[static_cast<size_t>(p)]);
    }
    return result;
  }
  return {rank};
}

Mesh parse_mesh(std::string_view text) {
  Mesh mesh;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) base::fail_input("mesh \"{}\": expected axis=size, as in \"dp=4\"", item);
    const std::string_view name = item.substr(0, equals), digits = item.substr(equals + 1);
    if (std::find(kAxes.begin(), kAxes.end(), name) == kAxes.end())
      base::fail_input("mesh axis \"{}\" is unknown: the axes are {}", name, fmt::join(kAxes, ", "));
    if (std::any_of(mesh.axes.begin(), mesh.axes.end(), [&](const Axis& a) { return a.name == name; }))
      base::fail_input("mesh axis \"{}\" is given twice", name);
    int size = 0;
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
    if (status != std::errc() || end != digits.data() + digits.size() || size < 1)
      base::fail_input("mesh.{} = {}: must be a whole number of at least 1", name, digits);
    mesh.axes.push_back({std::string(name), size});
  }
  return mesh;
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (const Axis& axis : mesh.axes) text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  return text.empty() ? "one rank" : text;
}

}  // namespace cairn::mesh
