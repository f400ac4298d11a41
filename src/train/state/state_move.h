// State that goes from one layout of a run to another, between two steps.
#pragma once
#include <vector>

#include "parallel/state/state_map.h"
#include "train/state/full_state.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

// By logical boxes, as snapshots are loaded: every rank computes what each of them had and has. A rank gets what it lacks from the nearest
// one that had it. Moves are exact. `before` and `after` are borrowed.
class StateMove {
 public:
  StateMove(comm::Group& step_group, const parallel::StateMap& before, const parallel::StateMap& after)
      : group_(step_group), before_(before), after_(after) {}

  // One tensor: `from.mine` of all ranks into `into.mine`. One uneven all-to-all, but none where nothing has changed. Collective. Returns
  // the bytes that this rank has sent to others.
  int64_t run(const StateTensor& from, const StateTensor& into) const;

 private:
  // What one rank gets from another one: the same list, in the same order, on both.
  struct Part {
    mesh::Box box;
    mesh::FragmentBox from, to;
  };
  // Ranks that had the same; together, the sources had all of the tensor, once.
  struct Source {
    mesh::Fragment fragment;
    std::vector<int> ranks;
  };
  std::vector<Source> sources(size_t parameter) const;
  static std::vector<Part> parts(const std::vector<Source>& sources, int from, const parallel::StateMap::Holding& to);

  comm::Group& group_;
  const parallel::StateMap &before_, &after_;
};

}  // namespace cairn::train
