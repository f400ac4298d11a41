#include "mesh/local_shard.h"

#include <algorithm>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::mesh {
namespace {

int64_t total(const std::vector<Interval>& intervals) {
  int64_t n = 0;
  for (const Interval& interval : intervals) n += interval.length();
  return n;
}

// Narrows the intervals held so far to `keep`, whose indices count in their concatenation; so splits nest.
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

std::vector<Interval> kept_by(const Split& split, const AxisCoordinate& place, int64_t size) {
  if (split.pieces.empty()) return {even_part(size, place.extent, place.coordinate)};
  if (static_cast<int>(split.pieces.size()) != place.extent)
    base::fail_input("split({}) lists {} parts for {} = {}", split.dim, split.pieces.size(), place.axis, place.extent);
  return split.pieces[static_cast<size_t>(place.coordinate)];
}

}  // namespace

std::vector<int64_t> LocalShard::local_shape() const {
  std::vector<int64_t> shape;
  for (const std::vector<Interval>& dim : dims) shape.push_back(total(dim));
  return shape;
}

std::vector<Box> LocalShard::boxes() const {
  std::vector<Box> result{Box{}};
  for (const std::vector<Interval>& dim : dims) {
    std::vector<Box> grown;
    for (const Box& box : result)
      for (const Interval& part : dim) {
        if (part.length() == 0) continue;
        grown.push_back(box);
        grown.back().dims.push_back(part);
      }
    result = std::move(grown);
  }
  return result;
}

Box LocalShard::local(const Box& logical) const {
  Box result;
  for (size_t i = 0; i < dims.size(); ++i) {
    const Interval want = logical.dims[i];
    int64_t start = 0;
    const auto holds = [&](const Interval& part) {
      if (part.begin <= want.begin && want.end <= part.end) return true;
      start += part.length();
      return false;
    };
    const auto part = std::find_if(dims[i].begin(), dims[i].end(), holds);
    CAIRN_CHECK(part != dims[i].end(), "a rank does not hold {}", to_string(logical));
    result.dims.push_back({start + want.begin - part->begin, start + want.end - part->begin});
  }
  return result;
}

LocalShard local_shard(const Placement& placement, const std::vector<AxisCoordinate>& axis_coordinates, const std::vector<int64_t>& shape) {
  LocalShard held;
  for (int64_t size : shape) held.dims.push_back({{0, size}});
  for (const Placement::OnAxis& on : placement.axes) {
    const Split* split = std::get_if<Split>(&on.how);
    const Ragged* ragged = std::get_if<Ragged>(&on.how);
    if (!split && !ragged) continue;
    const int64_t dim = split ? split->dim : ragged->dim;
    if (dim < 0 || dim >= static_cast<int64_t>(shape.size()))
      base::fail_input("{}: {}({}) of a tensor of {} dims", on.axis, split ? "split" : "ragged", dim, shape.size());
    const auto at =
        std::find_if(axis_coordinates.begin(), axis_coordinates.end(), [&](const AxisCoordinate& place) { return place.axis == on.axis; });
    const AxisCoordinate place = at == axis_coordinates.end() ? AxisCoordinate{on.axis, 0, 1} : *at;
    std::vector<Interval>& intervals = held.dims[static_cast<size_t>(dim)];
    const int64_t size = total(intervals);
    intervals = narrow(intervals, split ? kept_by(*split, place, size) : intervals_of(*ragged, place.coordinate, size));
  }
  return held;
}

at::Tensor cut_out(const at::Tensor& whole, const LocalShard& local_shard) {
  at::Tensor part = whole;
  for (size_t dim = 0; dim < local_shard.dims.size(); ++dim) {
    std::vector<at::Tensor> pieces;
    for (const Interval& interval : local_shard.dims[dim])
      pieces.push_back(part.narrow(static_cast<int64_t>(dim), interval.begin, interval.length()));
    if (pieces.empty()) return at::empty(local_shard.local_shape(), whole.options());
    part = pieces.size() == 1 ? pieces[0] : at::cat(pieces, static_cast<int64_t>(dim));
  }
  return part;
}

void put_back(const at::Tensor& whole, const LocalShard& local_shard, const at::Tensor& local) {
  for (const Box& box : local_shard.boxes()) {
    const Box inside = local_shard.local(box);
    at::Tensor to = whole, from = local;
    for (size_t dim = 0; dim < box.dims.size(); ++dim) {
      to = to.narrow(static_cast<int64_t>(dim), box.dims[dim].begin, box.dims[dim].length());
      from = from.narrow(static_cast<int64_t>(dim), inside.dims[dim].begin, inside.dims[dim].length());
    }
    to.copy_(from);
  }
}

}  // namespace cairn::mesh
