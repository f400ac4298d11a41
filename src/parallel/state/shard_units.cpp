#include "parallel/state/shard_units.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "comm/group.h"
#include "model/model.h"
#include "model/named_parameters.h"

namespace cairn::parallel {
namespace {

// The first block that names each parameter; parameters that none names go with the one before.
std::vector<int64_t> first_blocks(const model::Model& model) {
  std::vector<int64_t> first(model.parameters().size(), -1);
  for (size_t b = 0; b < model.blocks().size(); ++b)
    for (const mesh::ParamId& id : model::named_parameters(model.blocks()[b]->card()))
      for (int32_t k = id.first; k < id.first + id.count; ++k)
        if (int64_t& at = first[static_cast<size_t>(k)]; at < 0) at = static_cast<int64_t>(b);
  for (size_t i = 1; i < first.size(); ++i) first[i] = std::max(first[i], first[i - 1]);
  return first;
}

// `sizes`: by piece of the layout, the elements of the whole parameter. Ranks along tp have different parts of a parameter, and must choose
// the same owner.
std::vector<int64_t> cut_between(const mesh::FlatLayout& layout, const ShardUnit& unit, const std::vector<int64_t>& sizes, int ranks) {
  std::vector<int64_t> counts(static_cast<size_t>(ranks), 0);
  // Each piece goes to the rank in whose even share its middle lies.
  const int64_t total = std::accumulate(sizes.begin() + unit.first, sizes.begin() + unit.last, int64_t{0});
  int64_t before = 0;
  for (int64_t i = unit.first; i < unit.last; ++i) {
    const int64_t size = sizes[static_cast<size_t>(i)], middle = before + size / 2;
    const int64_t owner = total > 0 ? std::min<int64_t>(middle * ranks / total, ranks - 1) : 0;
    counts[static_cast<size_t>(owner)] += layout.pieces[static_cast<size_t>(i)].elements;
    before += size;
  }
  return counts;
}

}  // namespace

mesh::Interval ShardUnit::part_of(int rank) const {
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  return {begin, begin + counts[static_cast<size_t>(rank)]};
}

mesh::FlatLayout layout_of(const mesh::FlatLayout& all, const ShardUnit& unit) {
  mesh::FlatLayout part;
  for (int64_t i = unit.first; i < unit.last; ++i) {
    const auto& piece = all.pieces[static_cast<size_t>(i)];
    part.append(piece.name, piece.shape);
  }
  return part;
}

std::vector<ShardUnit> make_shard_units(const model::Model& model, const mesh::FlatLayout& layout, const ShardUnitRules& rules) {
  const std::vector<int64_t> blocks = first_blocks(model);
  std::vector<ShardUnit> units;
  std::vector<int64_t> sizes;
  int64_t block = -1, joined = 0;  // elements of the last unit
  size_t parameter = 0;            // the layout may leave some out, but keeps the order
  for (size_t i = 0; i < layout.pieces.size(); ++i) {
    while (model.parameters()[parameter].name != layout.pieces[i].name) ++parameter;
    const int64_t here = layout.pieces[i].elements;
    sizes.push_back(rules.whole_parameters && here > 0 ? model.parameters()[parameter].elements() : here);
    const bool full = !units.empty() && joined >= std::max<int64_t>(1, rules.min_elements);
    const bool of_many = model.parameters()[parameter].of_many_layers;
    if (units.empty() || units.back().of_many_layers != of_many || (blocks[parameter] != block && full)) {
      joined = 0;
      units.push_back({.first = static_cast<int64_t>(i),
                       .last = static_cast<int64_t>(i),
                       .offset = layout.pieces[i].offset,
                       .counts = {},
                       .of_many_layers = of_many});
    }
    block = blocks[parameter];
    units.back().last = static_cast<int64_t>(i) + 1;
    units.back().elements += here;
    joined += sizes.back();
  }
  for (size_t u = 0; rules.by_owner && u < units.size(); ++u) {
    units[u].counts.assign(static_cast<size_t>(rules.ranks), 0);
    units[u].counts[u % static_cast<size_t>(rules.ranks)] = units[u].elements;
  }
  if (rules.by_owner) return units;
  for (ShardUnit& unit : units)
    unit.counts = rules.whole_parameters ? cut_between(layout, unit, sizes, rules.ranks) : comm::even_counts(unit.elements, rules.ranks);
  return units;
}

std::vector<ShardUnit> select_units(const mesh::FlatLayout& layout, const std::vector<ShardUnit>& units, const std::vector<bool>& chosen) {
  std::vector<ShardUnit> some;
  int64_t piece = 0, offset = 0;  // in the layout of the chosen
  for (const ShardUnit& unit : units) {
    ShardUnit one{.first = piece,
                  .last = piece,
                  .offset = offset,
                  .counts = std::vector<int64_t>(unit.counts.size(), 0),
                  .of_many_layers = unit.of_many_layers};
    for (int64_t i = unit.first; i < unit.last; ++i) {
      if (!chosen[static_cast<size_t>(i)]) continue;
      const auto& of = layout.pieces[static_cast<size_t>(i)];
      const int64_t at = of.offset - unit.offset;
      ++one.last;
      one.elements += of.elements;
      for (size_t rank = 0; rank < one.counts.size(); ++rank) {
        const mesh::Interval mine = unit.part_of(static_cast<int>(rank));
        one.counts[rank] += std::max<int64_t>(0, std::min(at + of.elements, mine.end) - std::max(at, mine.begin));
      }
    }
    piece = one.last;
    offset += one.elements;
    if (one.last > one.first) some.push_back(std::move(one));
  }
  return some;
}

std::vector<ShardSlice> shard_slices(const mesh::FlatLayout& layout, const std::vector<ShardUnit>& units, int rank) {
  std::vector<ShardSlice> kept;
  for (size_t u = 0; u < units.size(); ++u) {
    const mesh::Interval mine = units[u].part_of(rank);
    for (int64_t i = units[u].first; i < units[u].last; ++i) {
      const auto& piece = layout.pieces[static_cast<size_t>(i)];
      const int64_t at = piece.offset - units[u].offset;
      const int64_t begin = std::max(at, mine.begin), end = std::min(at + piece.elements, mine.end);
      if (begin < end) kept.push_back({i, {begin - at, end - at}, static_cast<int64_t>(u), begin - mine.begin});
    }
  }
  return kept;
}

}  // namespace cairn::parallel
