#include "parallel/state/active_unit.h"

#include <algorithm>

#include <ATen/core/IListRef.h>

#include "kernels/aten.h"

namespace cairn::parallel {
namespace {

void append_run(std::vector<mesh::Interval>& runs, mesh::Interval next) {
  if (next.length() <= 0) return;
  if (!runs.empty() && runs.back().end == next.begin)
    runs.back().end = next.end;
  else
    runs.push_back(next);
}

}  // namespace

ActiveUnit active_unit(const mesh::FlatLayout& layout, const ShardUnit& unit, const std::vector<bool>& chosen, int rank) {
  ActiveUnit active{.counts = std::vector<int64_t>(unit.counts.size(), 0)};
  for (int64_t i = unit.first; i < unit.last; ++i) {
    if (!chosen[static_cast<size_t>(i)]) continue;
    const auto& piece = layout.pieces[static_cast<size_t>(i)];
    const mesh::Interval range{piece.offset - unit.offset, piece.offset - unit.offset + piece.elements};
    append_run(active.runs, range);
    active.elements += range.length();
    for (size_t r = 0; r < active.counts.size(); ++r) {
      const mesh::Interval part = unit.part_of(static_cast<int>(r));
      const mesh::Interval both{std::max(part.begin, range.begin), std::min(part.end, range.end)};
      if (both.length() <= 0) continue;
      active.counts[r] += both.length();
      if (static_cast<int>(r) == rank) append_run(active.own, both);
    }
  }
  active.all = active.elements == unit.elements;
  return active;
}

std::vector<ActiveUnit> active_units(const mesh::FlatLayout& layout, const std::vector<ShardUnit>& units, const std::vector<bool>& chosen,
                                     int rank) {
  std::vector<ActiveUnit> active;
  for (const ShardUnit& unit : units) active.push_back(active_unit(layout, unit, chosen, rank));
  return active;
}

at::Tensor pack(const at::Tensor& unit, const std::vector<mesh::Interval>& runs) {
  if (runs.empty()) return unit.narrow(0, 0, 0).clone();
  std::vector<at::Tensor> parts;
  for (const mesh::Interval& run : runs) parts.push_back(unit.narrow(0, run.begin, run.length()));
  return at::cat(parts);
}

void unpack(const at::Tensor& packed, const std::vector<mesh::Interval>& runs, const at::Tensor& unit) {
  int64_t next = 0;
  for (const mesh::Interval& run : runs) {
    unit.narrow(0, run.begin, run.length()).copy_(packed.narrow(0, next, run.length()));
    next += run.length();
  }
}

}  // namespace cairn::parallel
