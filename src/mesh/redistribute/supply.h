#pragma once
#include <map>
#include <vector>

#include "mesh/layout_change.h"
#include "mesh/redistribute_plan.h"

namespace cairn::mesh {

// Which ranks can supply a box: the ranks of `change.from`, by replica and by partial term.
class Supply {
 public:
  explicit Supply(const LayoutChange& change);

  // Transfers to rank `to`, the `index`-th receiver, that cover the box exactly once. Refuses a box that no rank holds.
  std::vector<BoxTransfer> transfers(int to, int index, const Box& box) const;

 private:
  struct Holder {
    int rank = 0;
    std::vector<Box> boxes;
  };
  using Key = std::vector<int>;                      // coordinates on some axes
  using Terms = std::map<Key, std::vector<Holder>>;  // by coordinates on the axes that are reduced
  using Replicas = std::map<Key, Terms>;             // by coordinates on the replicated axes
  const Replicas& replicas_for(int to) const;
  std::vector<BoxTransfer> from_replica(const Terms& terms, int to, int index, const Box& box) const;

  const LayoutChange& change_;
  std::vector<std::string> kept_, reduced_, replicating_;  // the axes of from.mesh that do not split
  std::map<Key, Replicas> by_kept_;                        // by coordinates on partial axes that stay partial
};

}  // namespace cairn::mesh
