#include "mesh/fragment.h"

#include "base/check.h"

namespace cairn::mesh {
namespace {

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// Cuts a flat range of a row-major tensor into boxes: part of a first row, whole rows, part of a last one, and so on inside those parts.
void cut_range(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, size_t dim, Interval range, Box& prefix,
               std::vector<Box>& boxes) {
  if (range.length() <= 0) return;
  if (dim == shape.size()) {
    boxes.push_back(prefix);
    return;
  }
  const int64_t row = strides[dim];
  const auto within = [&](int64_t index, Interval part) {
    prefix.dims.push_back({index, index + 1});
    cut_range(shape, strides, dim + 1, part, prefix, boxes);
    prefix.dims.pop_back();
  };
  int64_t first = range.begin / row;
  const int64_t last = range.end / row;
  if (range.begin % row != 0 || first == last) {
    const int64_t end = std::min(range.end - first * row, row);
    within(first, {range.begin % row, end});
    ++first;
  }
  if (first < last) {
    Box rows = prefix;
    rows.dims.push_back({first, last});
    for (size_t d = dim + 1; d < shape.size(); ++d) rows.dims.push_back({0, shape[d]});
    boxes.push_back(std::move(rows));
  }
  if (last >= first && range.end % row != 0) within(last, {0, range.end % row});
}

// The parts of a range of local indices that lie in one interval each: where they are in the local tensor, and in the logical one.
std::vector<std::pair<Interval, Interval>> logical_parts(const std::vector<Interval>& held, Interval local) {
  std::vector<std::pair<Interval, Interval>> parts;
  int64_t start = 0;
  for (const Interval& interval : held) {
    const int64_t begin = std::max(local.begin, start), end = std::min(local.end, start + interval.length());
    if (begin < end) parts.push_back({{begin, end}, {interval.begin + begin - start, interval.begin + end - start}});
    start += interval.length();
  }
  return parts;
}

}  // namespace

Fragment whole_tensor(const std::vector<int64_t>& shape) {
  Fragment fragment;
  int64_t elements = 1;
  for (const int64_t size : shape) {
    fragment.local_shard.dims.push_back({{0, size}});
    elements *= size;
  }
  fragment.elements = {0, elements};
  return fragment;
}

std::vector<FragmentBox> boxes_of(const Fragment& fragment) {
  const std::vector<int64_t> shape = fragment.local_shard.local_shape(), strides = row_major_strides(shape);
  std::vector<Box> local;
  Box prefix;
  cut_range(shape, strides, 0, fragment.elements, prefix, local);
  std::vector<FragmentBox> boxes;
  for (const Box& box : local) {
    std::vector<FragmentBox> grown{{.box = {}, .start = -fragment.elements.begin, .strides = strides}};
    for (size_t d = 0; d < shape.size(); ++d) {
      std::vector<FragmentBox> next;
      for (const FragmentBox& one : grown)
        for (const auto& [here, there] : logical_parts(fragment.local_shard.dims[d], box.dims[d])) {
          next.push_back(one);
          next.back().start += here.begin * strides[d];
          next.back().box.dims.push_back(there);
        }
      grown = std::move(next);
    }
    boxes.insert(boxes.end(), grown.begin(), grown.end());
  }
  return boxes;
}

int64_t start_of(const Box& part, const FragmentBox& whole) {
  CAIRN_CHECK(contains(whole.box, part), "{} is not inside {}", to_string(part), to_string(whole.box));
  int64_t start = whole.start;
  for (size_t d = 0; d < part.dims.size(); ++d) start += (part.dims[d].begin - whole.box.dims[d].begin) * whole.strides[d];
  return start;
}

FragmentBox dense(const std::vector<int64_t>& shape) { return {whole(shape), 0, row_major_strides(shape)}; }

std::vector<CopyRun> runs_between(const Box& part, const FragmentBox& from, const FragmentBox& to) {
  const size_t dims = part.dims.size();
  int64_t run = 1;
  size_t inner = dims;  // dims from here on are one run in both places
  while (inner > 0 && from.strides[inner - 1] == run && to.strides[inner - 1] == run) run *= part.dims[--inner].length();
  std::vector<CopyRun> runs;
  if (part.elements() == 0) return runs;
  std::vector<int64_t> index(inner, 0);
  CopyRun next{start_of(part, from), start_of(part, to), run};
  while (true) {
    runs.push_back(next);
    size_t d = inner;
    while (d-- > 0) {
      next.from += from.strides[d];
      next.to += to.strides[d];
      if (++index[d] < part.dims[d].length()) break;
      next.from -= index[d] * from.strides[d];
      next.to -= index[d] * to.strides[d];
      index[d] = 0;
      if (d == 0) return runs;
    }
    if (inner == 0) return runs;
  }
}

}  // namespace cairn::mesh
