#pragma once
#include <cstdint>
#include <vector>

#include "mesh/box.h"

namespace cairn::mesh {

// Ownership by table, for experts and other shards that move: one dim is a row of ids, and the table lists the owners of each id, as
// coordinates along the axis. The first owner of an id is its home. A coordinate may own many ids or none; every owner of an id holds it. A
// value: to move an id, make another table and redistribute from the old one to the new one.
struct Ragged {
  int64_t dim = 0;
  std::vector<std::vector<int>> owners;  // by id: coordinates along the axis
  std::vector<int64_t> lengths;          // indices of the dim per id; empty: the even split of the dim over the ids
  bool partial = false;                  // false: owners hold the same values; true: the value of an id is the sum over its owners

  bool operator==(const Ragged&) const = default;
};

// The indices of an id in a dim of `size` indices.
Interval interval_of(const Ragged& table, int64_t id, int64_t size);
// The ids, and their indices, that a coordinate owns, in ascending order.
std::vector<int64_t> ids_of(const Ragged& table, int coordinate);
std::vector<Interval> intervals_of(const Ragged& table, int coordinate, int64_t size);

// The same table with the home as only owner of each id.
Ragged homes(Ragged table);

// Changed tables. They refuse to add an owner twice, to drop one that does not own the id, and to leave an id without owner.
Ragged with_owner(Ragged table, int64_t id, int coordinate);
Ragged without_owner(Ragged table, int64_t id, int coordinate);
Ragged moved(Ragged table, int64_t id, int from, int to);

// `ids` divided evenly over `parts` coordinates, one owner each.
Ragged even_ragged(int64_t dim, int64_t ids, int parts);

// Refuses ids without owner, repeated owners, owners outside [0, extent), and lengths that do not add up to `size`.
void check(const Ragged& table, int extent, int64_t size);

}  // namespace cairn::mesh
