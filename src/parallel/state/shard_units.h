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

// A run of neighbouring parameters whose state is sharded as one (an FSDP unit, a gradient bucket): one all-gather brings its parameters
// together, one reduce-scatter gives each rank its gradients. Each rank owns a contiguous range of the unit's flat buffer.
struct ShardUnit {
  int64_t first = 0, last = 0;       // pieces [first, last) of a layout
  int64_t offset = 0, elements = 0;  // in the flat buffer of the layout
  std::vector<int64_t> counts;       // elements that each rank owns, one after the other
  bool of_many_layers = false;       // once gathered it stays until the next update (ZeRO 3)
  bool operator==(const ShardUnit&) const = default;

  mesh::Interval part_of(int rank) const;  // in elements of the unit
};

// The pieces of a unit as a layout that starts at 0.
mesh::FlatLayout layout_of(const mesh::FlatLayout& all, const ShardUnit& unit);

// Where units end, and how they are cut.
struct ShardUnitRules {
  int ranks = 1;                  // that shard each unit
  int64_t min_elements = 0;       // neighbouring blocks join until a unit has this many; 0: one unit per block
  bool by_owner = false;          // each unit is whole on one rank, one after the other
  bool whole_parameters = false;  // cut between parameters only, at the same ones on all ranks along tp, for optimizers on matrices
};

// The units of a layout over a model's parameters. A parameter belongs to the first block that uses it. Every piece is in exactly one unit.
std::vector<ShardUnit> make_shard_units(const model::Model& model, const mesh::FlatLayout& layout, const ShardUnitRules& rules);

// The units restricted to the chosen pieces, in the layout of those alone (mesh::trainable_layout). Each rank owns of a piece what it owns
// of it in `units`. Units without a chosen piece are left out.
std::vector<ShardUnit> select_units(const mesh::FlatLayout& layout, const std::vector<ShardUnit>& units, const std::vector<bool>& chosen);

// What one rank owns of one parameter.
struct ShardSlice {
  int64_t piece = 0;             // of the layout
  mesh::Interval elements = {};  // of the piece
  int64_t unit = 0;
  int64_t offset = 0;  // in the rank's shard of the unit
  bool operator==(const ShardSlice&) const = default;
};
// All slices of one rank, in the order of the units and their pieces.
std::vector<ShardSlice> shard_slices(const mesh::FlatLayout& layout, const std::vector<ShardUnit>& units, int rank);

}  // namespace cairn::parallel
