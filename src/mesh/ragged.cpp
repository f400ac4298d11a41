#include "mesh/ragged.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"

namespace cairn::mesh {
namespace {

std::vector<int>& owners_of(Ragged& table, int64_t id) {
  if (id < 0 || id >= static_cast<int64_t>(table.owners.size())) base::fail_input("id {} of a table of {} ids", id, table.owners.size());
  return table.owners[static_cast<size_t>(id)];
}

}  // namespace

Interval interval_of(const Ragged& table, int64_t id, int64_t size) {
  if (table.lengths.empty()) return even_part(size, static_cast<int64_t>(table.owners.size()), id);
  const int64_t begin = std::accumulate(table.lengths.begin(), table.lengths.begin() + id, int64_t{0});
  return {begin, begin + table.lengths[static_cast<size_t>(id)]};
}

std::vector<int64_t> ids_of(const Ragged& table, int coordinate) {
  std::vector<int64_t> ids;
  for (size_t id = 0; id < table.owners.size(); ++id) {
    const std::vector<int>& owners = table.owners[id];
    if (std::find(owners.begin(), owners.end(), coordinate) != owners.end()) ids.push_back(static_cast<int64_t>(id));
  }
  return ids;
}

std::vector<Interval> intervals_of(const Ragged& table, int coordinate, int64_t size) {
  std::vector<Interval> intervals;
  for (int64_t id : ids_of(table, coordinate)) intervals.push_back(interval_of(table, id, size));
  return intervals;
}

Ragged homes(Ragged table) {
  for (std::vector<int>& owners : table.owners)
    if (owners.size() > 1) owners.erase(owners.begin() + 1, owners.end());
  return table;
}

Ragged with_owner(Ragged table, int64_t id, int coordinate) {
  std::vector<int>& owners = owners_of(table, id);
  if (std::find(owners.begin(), owners.end(), coordinate) != owners.end())
    base::fail_input("coordinate {} owns id {} already", coordinate, id);
  owners.push_back(coordinate);
  return table;
}

Ragged without_owner(Ragged table, int64_t id, int coordinate) {
  std::vector<int>& owners = owners_of(table, id);
  const auto at = std::find(owners.begin(), owners.end(), coordinate);
  if (at == owners.end()) base::fail_input("coordinate {} does not own id {}", coordinate, id);
  if (owners.size() == 1) base::fail_input("coordinate {} is the last owner of id {}: give it another first", coordinate, id);
  owners.erase(at);
  return table;
}

Ragged moved(Ragged table, int64_t id, int from, int to) { return without_owner(with_owner(std::move(table), id, to), id, from); }

Ragged even_ragged(int64_t dim, int64_t ids, int parts) {
  Ragged table{dim, {}, {}, false};
  for (int c = 0; c < parts; ++c)
    for (int64_t k = even_part(ids, parts, c).length(); k > 0; --k) table.owners.push_back({c});
  return table;
}

void check(const Ragged& table, int extent, int64_t size) {
  if (table.owners.empty()) base::fail_input("ragged({}) lists no ids", table.dim);
  for (size_t id = 0; id < table.owners.size(); ++id) {
    if (table.owners[id].empty()) base::fail_input("ragged({}): id {} has no owner", table.dim, id);
    std::set<int> seen;
    for (int owner : table.owners[id]) {
      if (owner < 0 || owner >= extent)
        base::fail_input("ragged({}): id {} is owned by coordinate {}: the axis has {}", table.dim, id, owner, extent);
      if (!seen.insert(owner).second) base::fail_input("ragged({}): id {} lists owner {} twice", table.dim, id, owner);
    }
  }
  if (table.lengths.empty()) return;
  if (table.lengths.size() != table.owners.size())
    base::fail_input("ragged({}) lists {} lengths for {} ids", table.dim, table.lengths.size(), table.owners.size());
  if (std::any_of(table.lengths.begin(), table.lengths.end(), [](int64_t length) { return length < 0; }))
    base::fail_input("ragged({}) lists a negative length", table.dim);
  const int64_t sum = std::accumulate(table.lengths.begin(), table.lengths.end(), int64_t{0});
  if (sum != size) base::fail_input("ragged({}): its lengths add up to {}, the dim has {}", table.dim, sum, size);
}

}  // namespace cairn::mesh
