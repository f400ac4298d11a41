#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/box.h"
#include "mesh/flat_layout.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// A run of neighbouring parameters whose state is shared out as one: one message brings it together, one gives each rank its part.
struct ShardUnit {
  int64_t first = 0, last = 0;       // pieces [first, last) of a layout
  int64_t offset = 0, elements = 0;  // of the flat buffer
  std::vector<int64_t> counts;       // how many elements each of the ranks keeps, one after the other
  bool operator==(const ShardUnit&) const = default;

  mesh::Interval part_of(int rank) const;  // in elements of the unit
};

// The pieces of a unit as a layout of their own.
mesh::FlatLayout layout_of(const mesh::FlatLayout& all, const ShardUnit& unit);

// Where units may end, and how they are cut.
struct ShardUnitRules {
  int ranks = 1;
  int64_t min_elements = 0;       // neighbouring blocks join until a unit has this many; 0: each block that has parameters is one
  bool whole_parameters = false;  // cut between parameters only, for rules that work on whole matrices
};

// The units of a layout over a model's parameters: by the first block that names each parameter. Every piece is in exactly one.
std::vector<ShardUnit> make_shard_units(const model::Model& model, const mesh::FlatLayout& layout, const ShardUnitRules& rules);

// The same units of the pieces that are chosen alone, in a layout of theirs (mesh::trainable_layout): each rank keeps of a piece what it
// keeps of it there. A unit without any is left out.
std::vector<ShardUnit> select_units(const mesh::FlatLayout& layout, const std::vector<ShardUnit>& units, const std::vector<bool>& chosen);

// What one rank keeps of one parameter.
struct ShardSlice {
  int64_t piece = 0;             // of the layout
  mesh::Interval elements = {};  // of the piece
  int64_t unit = 0;
  int64_t offset = 0;  // in the rank's part of the unit
  bool operator==(const ShardSlice&) const = default;
};
std::vector<ShardSlice> shard_slices(const mesh::FlatLayout& layout, const std::vector<ShardUnit>& units, int rank);

}  // namespace cairn::parallel
