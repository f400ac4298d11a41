#pragma once
#include <map>
#include <vector>

#include "mesh/layout_change.h"
#include "mesh/redistribute_plan.h"

namespace cairn::mesh {

// Who can give what: the ranks of `change.from`, by replica and by partial value.
class Supply {
 public:
  explicit Supply(const LayoutChange& change);

  // Where rank `to`, the `index`-th of the receivers, gets a box from: pieces that cover it exactly once. Refuses what nobody holds.
  std::vector<BoxTransfer> transfers(int to, int index, const Box& box) const;

 private:
  struct Holder {
    int rank = 0;
    std::vector<Box> boxes;
  };
  using Key = std::vector<int>;                      // coordinates on some axes
  using Terms = std::map<Key, std::vector<Holder>>;  // by coordinates on the axes to be reduced
  using Replicas = std::map<Key, Terms>;             // by coordinates on the replicating axes
  const Replicas& replicas_for(int to) const;
  std::vector<BoxTransfer> from_replica(const Terms& terms, int to, int index, const Box& box) const;

  const LayoutChange& change_;
  std::vector<std::string> kept_, reduced_, replicating_;  // the axes of from.mesh that do not split
  std::map<Key, Replicas> by_kept_;                        // by coordinates on partial axes that stay partial
};

}  // namespace cairn::mesh
