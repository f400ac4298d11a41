#include "mesh/dtensor/view_rules.h"

#include <algorithm>

#include "mesh/dtensor.h"

namespace cairn::mesh {
namespace {

constexpr int64_t kMaxIntervals = 4096;

// Consecutive dims [first, last) of both shapes with the same number of elements.
struct DimGroup {
  size_t from_first = 0, from_last = 0, to_first = 0, to_last = 0;
};

std::vector<DimGroup> dim_groups(const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  std::vector<DimGroup> groups;
  for (size_t i = 0, j = 0; i < from.size() || j < to.size();) {
    const size_t first = i, to_first = j;
    int64_t a = i < from.size() ? from[i++] : 1, b = j < to.size() ? to[j++] : 1;
    while (a != b) a < b ? a *= from[i++] : b *= to[j++];
    groups.push_back({first, i, to_first, j});
  }
  return groups;
}

int64_t product(const std::vector<int64_t>& shape, size_t first, size_t last) {
  int64_t n = 1;
  for (size_t i = first; i < last; ++i) n *= shape[i];
  return n;
}

// The split of dim `at` as a split of the group's elements in a row; empty pieces where there would be too many.
Split flattened_split(const Split& split, const std::vector<int64_t>& shape, size_t first, size_t last, int ranks) {
  const auto at = static_cast<size_t>(split.dim);
  const int64_t before = product(shape, first, at), after = product(shape, at + 1, last), size = shape[at];
  Split flat{0, {}};
  if (before > kMaxIntervals) return flat;
  for (const std::vector<Interval>& held : split.pieces) {
    std::vector<Interval>& all = flat.pieces.emplace_back();
    for (int64_t i = 0; i < before; ++i)
      for (const Interval& one : held) all.push_back({(i * size + one.begin) * after, (i * size + one.end) * after});
  }
  return canonical(std::move(flat), before * size * after, ranks);
}

// The split of a dim of `size` indices, each of `after` elements, whose repetition over `before` gives these elements; none where a rank's
// elements are not so.
std::optional<Split> unflattened(const Split& flat, int64_t dim, int64_t before, int64_t size, int64_t after, int ranks) {
  Split split{dim, {}};
  for (const std::vector<Interval>& held : flat.pieces) {
    std::vector<Interval>& mine = split.pieces.emplace_back();
    for (const Interval& one : held) {
      if (one.begin >= size * after) break;
      const int64_t end = std::min(one.end, size * after);
      if (one.begin % after != 0 || end % after != 0) return std::nullopt;
      mine.push_back({one.begin / after, end / after});
    }
  }
  split = canonical(std::move(split), size, ranks);
  std::vector<int64_t> shape{before, size, after};
  Split again = split;
  again.dim = 1;
  return flattened_split(again, shape, 0, 3, ranks) == flat ? std::optional(split) : std::nullopt;
}

}  // namespace

std::optional<Split> viewed(const Split& split, const std::vector<int64_t>& from, const std::vector<int64_t>& to, int ranks) {
  for (const int64_t size : from)
    if (size == 0) return std::nullopt;
  for (const DimGroup& group : dim_groups(from, to)) {
    if (static_cast<size_t>(split.dim) < group.from_first || static_cast<size_t>(split.dim) >= group.from_last) continue;
    const Split flat = flattened_split(split, from, group.from_first, group.from_last, ranks);
    if (flat.pieces.empty()) return std::nullopt;
    for (size_t at = group.to_first; at < group.to_last; ++at) {
      if (to[at] == 1) continue;
      const auto found =
          unflattened(flat, static_cast<int64_t>(at), product(to, group.to_first, at), to[at], product(to, at + 1, group.to_last), ranks);
      if (found) return found;
    }
  }
  return std::nullopt;
}

SlicedSplit sliced(const Split& split, int64_t begin, int64_t end, int rank) {
  SlicedSplit result{{split.dim, {}}, {}};
  for (size_t r = 0; r < split.pieces.size(); ++r) {
    std::vector<Interval>& mine = result.split.pieces.emplace_back();
    int64_t before = 0, kept = 0;
    for (const Interval& one : split.pieces[r]) {
      const Interval common{std::max(one.begin, begin), std::min(one.end, end)};
      if (common.length() > 0) {
        mine.push_back({common.begin - begin, common.end - begin});
        if (kept == 0) before += common.begin - one.begin;
        kept += common.length();
      } else if (kept == 0) {
        before += one.length();
      }
    }
    if (static_cast<int>(r) == rank) result.local = {kept == 0 ? 0 : before, (kept == 0 ? 0 : before) + kept};
  }
  return result;
}

Split concatenated(const std::vector<Split>& splits, const std::vector<int64_t>& sizes) {
  Split all{splits.front().dim, std::vector<std::vector<Interval>>(splits.front().pieces.size())};
  int64_t offset = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    for (size_t r = 0; r < all.pieces.size(); ++r)
      for (const Interval& one : splits[i].pieces[r]) all.pieces[r].push_back({offset + one.begin, offset + one.end});
    offset += sizes[i];
  }
  return canonical(std::move(all), offset, static_cast<int>(all.pieces.size()));
}

}  // namespace cairn::mesh
