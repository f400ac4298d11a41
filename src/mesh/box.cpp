#include "mesh/box.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::mesh {

int64_t Box::elements() const {
  int64_t n = 1;
  for (const Interval& d : dims) n *= d.length();
  return n;
}

Box whole(const std::vector<int64_t>& shape) {
  Box box;
  for (int64_t size : shape) box.dims.push_back({0, size});
  return box;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  CAIRN_CHECK(a.dims.size() == b.dims.size(), "boxes of {} and {} dims", a.dims.size(), b.dims.size());
  for (size_t i = 0; i < a.dims.size(); ++i)
    if (a.dims[i].begin >= b.dims[i].end || b.dims[i].begin >= a.dims[i].end) return std::nullopt;
  Box shared = a;
  for (size_t i = 0; i < a.dims.size(); ++i)
    shared.dims[i] = {std::max(a.dims[i].begin, b.dims[i].begin), std::min(a.dims[i].end, b.dims[i].end)};
  return shared.elements() > 0 ? std::optional(shared) : std::nullopt;
}

std::vector<Box> subtract(const Box& a, const Box& b) {
  const std::optional<Box> shared = intersect(a, b);
  if (!shared) return {a};
  std::vector<Box> outside;
  Box rest = a;  // shrinks, dim by dim, to what is shared
  for (size_t i = 0; i < a.dims.size(); ++i) {
    const Interval inner = shared->dims[i];
    for (const Interval& side : {Interval{rest.dims[i].begin, inner.begin}, Interval{inner.end, rest.dims[i].end}}) {
      if (side.length() <= 0) continue;
      outside.push_back(rest);
      outside.back().dims[i] = side;
    }
    rest.dims[i] = inner;
  }
  return outside;
}

bool contains(const Box& outer, const Box& inner) {
  for (size_t i = 0; i < outer.dims.size(); ++i)
    if (inner.dims[i].begin < outer.dims[i].begin || inner.dims[i].end > outer.dims[i].end) return false;
  return outer.dims.size() == inner.dims.size();
}

std::vector<Box> cut(const Box& box, int64_t parts) {
  if (box.dims.empty() || parts <= 1) return {box};
  size_t longest = 0;
  for (size_t i = 1; i < box.dims.size(); ++i)
    if (box.dims[i].length() > box.dims[longest].length()) longest = i;
  const Interval along = box.dims[longest];
  std::vector<Box> pieces;
  for (int64_t k = 0; k < std::min(parts, along.length()); ++k) {
    const Interval part = even_part(along.length(), parts, k);
    pieces.push_back(box);
    pieces.back().dims[longest] = {along.begin + part.begin, along.begin + part.end};
  }
  return pieces;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (size_t i = 0; i < box.dims.size(); ++i) text += fmt::format("{}{}:{}", i ? ", " : "", box.dims[i].begin, box.dims[i].end);
  return text + "]";
}

Interval even_part(int64_t size, int64_t parts, int64_t index) {
  const int64_t least = size / parts, longer = size % parts;
  return {least * index + std::min(index, longer), least * (index + 1) + std::min(index + 1, longer)};
}

}  // namespace cairn::mesh
