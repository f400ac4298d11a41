#include "mesh/splits.h"

#include "base/check.h"

namespace cairn::mesh {

Split split_by_counts(int64_t dim, const std::vector<int64_t>& counts) {
  Split split{dim, {}};
  int64_t begin = 0;
  for (int64_t count : counts) {
    if (count < 0) base::fail_input("split({}) of {} indices", dim, count);
    split.pieces.push_back(count > 0 ? std::vector<Interval>{{begin, begin + count}} : std::vector<Interval>{});
    begin += count;
  }
  return split;
}

Split split_zigzag(int64_t dim, int64_t size, int parts) {
  Split split{dim, {}};
  for (int c = 0; c < parts; ++c) {
    std::vector<Interval>& held = split.pieces.emplace_back();
    for (int chunk : {c, 2 * parts - 1 - c})
      if (const Interval part = even_part(size, 2 * parts, chunk); part.length() > 0) held.push_back(part);
  }
  return split;
}

Split split_fused(int64_t dim, const std::vector<int64_t>& sections, int parts, int64_t unit) {
  CAIRN_CHECK(unit > 0, "a unit of {}", unit);
  Split split{dim, std::vector<std::vector<Interval>>(static_cast<size_t>(parts))};
  int64_t begin = 0;
  for (int64_t section : sections) {
    if (section % unit != 0) base::fail_input("a section of {} indices is not whole units of {}", section, unit);
    for (int c = 0; c < parts; ++c) {
      const Interval part = even_part(section / unit, parts, c);
      if (part.length() > 0) split.pieces[static_cast<size_t>(c)].push_back({begin + part.begin * unit, begin + part.end * unit});
    }
    begin += section;
  }
  return split;
}

}  // namespace cairn::mesh
