#pragma once
#include <cstdint>
#include <vector>

#include "mesh/box.h"

namespace cairn::mesh {

// Ownership by table: one dim is a row of ids (experts, shards), and each id lies at the coordinates of the axis that the table lists, the
// first of them its home. Coordinates may own many ids or none; an id with several owners is held by each of them. A value: who owns what
// changes by making another table and redistributing from the old one to the new one.
struct Ragged {
  int64_t dim = 0;
  std::vector<std::vector<int>> owners;  // by id: coordinates along the axis
  std::vector<int64_t> lengths;          // indices of the dim per id; empty: the even split of the dim over the ids
  bool partial = false;                  // false: owners hold the same values; true: the value of an id is the sum over its owners

  bool operator==(const Ragged&) const = default;
};

// Where an id lies in a dim of `size` indices.
Interval interval_of(const Ragged& table, int64_t id, int64_t size);
// What a coordinate owns, in the order of the ids.
std::vector<int64_t> ids_of(const Ragged& table, int coordinate);
std::vector<Interval> intervals_of(const Ragged& table, int coordinate, int64_t size);

// The table with each id at its home only.
Ragged homes(Ragged table);

// Changed tables. They refuse to add an owner twice, to drop one that is not there, and to leave an id without owner.
Ragged with_owner(Ragged table, int64_t id, int coordinate);
Ragged without_owner(Ragged table, int64_t id, int coordinate);
Ragged moved(Ragged table, int64_t id, int from, int to);

// `ids` dealt evenly over `parts` coordinates, as the even split deals indices.
Ragged even_ragged(int64_t dim, int64_t ids, int parts);

// Refuses ids without owner, owners given twice or outside [0, extent), and lengths that do not add up to `size`.
void check(const Ragged& table, int extent, int64_t size);

}  // namespace cairn::mesh
