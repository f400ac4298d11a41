#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "mesh/layout_change.h"

namespace cairn::mesh {

// The boxes that each rank must receive so that the tensor has the layout `change.to`. These are the boxes that the rank holds there, with
// one exception: along an axis that becomes partial only one coordinate holds the value and the others hold the reduction's identity (0 or
// -inf). A value that was split along that axis stays where it is; otherwise coordinate 0 holds it.
class Demand {
 public:
  explicit Demand(const LayoutChange& change);  // borrowed
  std::vector<Box> of(int rank) const;

 private:
  const LayoutChange& change_;
  Placement to_;                      // ragged ids that become partial lie at their first owner only
  std::vector<std::string> at_zero_;  // new partial axes whose coordinate 0 holds the value
  std::vector<std::string> fixed_;    // axes whose coordinates determine the region that a rank keeps; empty: no such axis
  std::map<std::vector<int>, std::set<Box>> regions_;
};

}  // namespace cairn::mesh
