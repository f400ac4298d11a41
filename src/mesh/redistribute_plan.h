#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mesh/box.h"
#include "mesh/layout_change.h"
#include "mesh/local_shard.h"

namespace cairn::mesh {

// One box that rank `to` receives: the reduction, in that order, of what the ranks `from` hold of it. With a single rank in `from` (maybe
// `to` itself) it is a copy.
struct BoxTransfer {
  int to = 0;
  Box box;
  std::vector<int> from;
  bool operator==(const BoxTransfer&) const = default;
};

// The collective that carries out a step.
enum class CollectiveKind { copy, all_gather, reduce_scatter, all_reduce, all_to_all };
std::string_view name(CollectiveKind collective);

// One collective of one group of ranks. Other ranks take no part in it.
struct ExchangeStep {
  CollectiveKind by = CollectiveKind::copy;
  std::vector<int> ranks;              // in the group's order; reductions run in it
  std::vector<BoxTransfer> transfers;  // by receiver, then by box
  bool operator==(const ExchangeStep&) const = default;
};

// What a change sends, counted in elements: in all, by the busiest sender, to the busiest receiver; and how many rounds of collectives.
struct RedistributeCost {
  int64_t elements = 0;
  int64_t elements_sent_max = 0;
  int64_t elements_received_max = 0;
  int rounds = 0;  // 0: nothing is sent
  bool operator==(const RedistributeCost&) const = default;
};

// How one change of placement is carried out: which rank sends what to whom, by which collective. A pure function of the change, so all
// ranks compute the same plan. It has at most two rounds; the second distributes what the first has reduced.
//
// Each receiver gets every element that it lacks exactly once (once per partial term): from its own replica if it is in one, else from the
// replicas in turn. Where several ranks need the same reduced value, each reduces an even share of it in round one and sends the share to
// the others in round two (reduce-scatter, then all-gather).
class RedistributePlan {
 public:
  explicit RedistributePlan(LayoutChange change);

  const LayoutChange& change() const { return change_; }
  Partial::Reduce reduce() const { return reduce_; }
  const std::vector<std::vector<ExchangeStep>>& rounds() const { return rounds_; }
  // The step of a round that a rank takes part in; null: none.
  const ExchangeStep* step_of(size_t round, int rank) const;

  // The rank's shard before and after; an empty one where it is not in the mesh.
  LocalShard held_before(int rank) const;
  LocalShard held_after(int rank) const;
  int64_t elements_given(int rank) const;  // elements that the rank receives; the rest of its new shard is the reduction's identity
  // Whether the rank's result is its input, unchanged.
  bool keeps(int rank) const;

  // Elements sent, by (sender, receiver). An all-reduce counts as reduce-scatter and all-gather of even shares.
  std::map<std::pair<int, int>, int64_t> traffic() const;
  RedistributeCost cost() const;

  // One line for each kind of step: "2 x all_gather of 2 ranks, 35 elements sent".
  std::string describe() const;

 private:
  LayoutChange change_;
  Partial::Reduce reduce_ = Partial::Reduce::sum;
  std::vector<std::vector<ExchangeStep>> rounds_;
  std::vector<std::map<int, size_t>> step_index_;  // by round: which step a rank takes part in
};

// Caches plans by change, so that a change made every step is planned once. Keep the pointer while the work runs: old plans are evicted.
class RedistributePlanCache {
 public:
  explicit RedistributePlanCache(size_t plans_max = 4096) : plans_max_(plans_max) {}
  std::shared_ptr<const RedistributePlan> get(const LayoutChange& change);
  size_t size() const { return plans_.size(); }

 private:
  size_t plans_max_;
  std::map<std::string, std::shared_ptr<const RedistributePlan>> plans_;
  std::deque<std::string> by_age_;
};

}  // namespace cairn::mesh
