#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/box.h"
#include "mesh/flat_layout.h"
#include "parallel/state/shard_units.h"

namespace cairn::parallel {

// The part of a shard unit that is sent. A message holds the chosen pieces alone, one after the other; nothing is sent where none is
// chosen. So neither frozen parameters nor their gradients travel.
struct ActiveUnit {
  std::vector<mesh::Interval> runs = {};  // the chosen elements of the unit; neighbours are joined
  std::vector<mesh::Interval> own = {};   // those of them that this rank owns
  std::vector<int64_t> counts = {};       // by rank: how many it owns
  int64_t elements = 0;
  bool all = true;  // every element of the unit

  bool none() const { return elements == 0 && !all; }
};

// `chosen`: by piece of the layout. A unit without elements counts as all.
ActiveUnit active_unit(const mesh::FlatLayout& layout, const ShardUnit& unit, const std::vector<bool>& chosen, int rank);
std::vector<ActiveUnit> active_units(const mesh::FlatLayout& layout, const std::vector<ShardUnit>& units, const std::vector<bool>& chosen,
                                     int rank);

// The elements of a unit's flat tensor in these runs, one after the other; and back.
at::Tensor pack(const at::Tensor& unit, const std::vector<mesh::Interval>& runs);
void unpack(const at::Tensor& packed, const std::vector<mesh::Interval>& runs, const at::Tensor& unit);

}  // namespace cairn::parallel
