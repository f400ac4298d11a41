#include "mesh/placement.h"

#include <fmt/format.h>

#include "base/check.h"
#include "mesh/mesh.h"

namespace cairn::mesh {
namespace {

// What coordinate `c` keeps of the intervals held so far: the split counts in their concatenation, so that splits nest.
std::vector<Interval> narrow(const std::vector<Interval>& held, const std::vector<Interval>& keep) {
  std::vector<Interval> result;
  for (const Interval& want : keep) {
    int64_t start = 0;
    for (const Interval& part : held) {
      const int64_t begin = std::max(want.begin, start), end = std::min(want.end, start + part.length());
      if (begin < end) result.push_back({part.begin + begin - start, part.begin + end - start});
      start += part.length();
    }
  }
  return result;
}

}  // namespace

Interval even_part(int64_t size, int64_t parts, int64_t index) { return {size * index / parts, size * (index + 1) / parts}; }

std::vector<Box> boxes(const Placement& placement, const Mesh& mesh, int rank, const std::vector<int64_t>& shape) {
  std::vector<std::vector<Interval>> held;  // per dim
  for (int64_t size : shape) held.push_back({{0, size}});
  for (const Placement::OnAxis& on : placement.axes) {
    const Split* split = std::get_if<Split>(&on.how);
    if (!split) continue;
    CAIRN_CHECK(split->dim >= 0 && split->dim < static_cast<int64_t>(shape.size()), "split({}) of a tensor of {} dims", split->dim,
                shape.size());
    const int parts = mesh.extent(on.axis), coordinate = mesh.coordinate(rank, on.axis);
    std::vector<Interval>& dim = held[static_cast<size_t>(split->dim)];
    int64_t size = 0;
    for (const Interval& part : dim) size += part.length();
    if (split->pieces.empty()) {
      dim = narrow(dim, {even_part(size, parts, coordinate)});
    } else {
      CAIRN_CHECK(static_cast<int>(split->pieces.size()) == parts, "split({}) lists {} parts for {} = {}", split->dim, split->pieces.size(),
                  on.axis, parts);
      dim = narrow(dim, split->pieces[static_cast<size_t>(coordinate)]);
    }
  }
  std::vector<Box> result{Box{}};
  for (const std::vector<Interval>& dim : held) {
    std::vector<Box> grown;
    for (const Box& box : result)
      for (const Interval& part : dim) {
        grown.push_back(box);
        grown.back().dims.push_back(part);
      }
    result = std::move(grown);
  }
  return result;
}

std::string to_string(const Placement& placement) {
  std::string text;
  for (const Placement::OnAxis& on : placement.axes) {
    std::string how = "replicate";
    if (const Split* split = std::get_if<Split>(&on.how))
      how = fmt::format("split({}{})", split->dim, split->pieces.empty() ? "" : ", uneven");
    if (const Partial* partial = std::get_if<Partial>(&on.how))
      how = partial->reduce == Partial::Reduce::sum ? "partial(sum)" : "partial(max)";
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", on.axis, how);
  }
  return text.empty() ? "replicated" : text;
}

}  // namespace cairn::mesh
