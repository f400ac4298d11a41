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
  Box shared;
  for (size_t i = 0; i < a.dims.size(); ++i) {
    const Interval d{std::max(a.dims[i].begin, b.dims[i].begin), std::min(a.dims[i].end, b.dims[i].end)};
    if (d.length() <= 0) return std::nullopt;
    shared.dims.push_back(d);
  }
  return shared;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (size_t i = 0; i < box.dims.size(); ++i) text += fmt::format("{}{}:{}", i ? ", " : "", box.dims[i].begin, box.dims[i].end);
  return text + "]";
}

}  // namespace cairn::mesh
