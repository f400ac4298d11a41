#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "mesh/layout_change.h"

namespace cairn::mesh {

// What each rank must be given so that the tensor lies as `change.to` says: the boxes it holds, except where a new partial axis lets others
// hold them and this rank the reduction's identity. A value that was split along that axis stays where it is; else coordinate 0 keeps it.
class Demand {
 public:
  explicit Demand(const LayoutChange& change);  // borrowed
  std::vector<Box> of(int rank) const;

 private:
  const LayoutChange& change_;
  Placement to_;                      // with ragged ids that become partial at their homes only
  std::vector<std::string> at_zero_;  // new partial axes whose coordinate 0 has it all
  std::vector<std::string> fixed_;    // axes whose coordinates say which region a rank keeps; empty: everything
  std::map<std::vector<int>, std::set<Box>> regions_;
};

}  // namespace cairn::mesh
