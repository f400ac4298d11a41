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

// One box that a rank is given: the reduction of what `from` hold of it, in that order; a copy where `from` is one rank, itself perhaps.
struct BoxTransfer {
  int to = 0;
  Box box;
  std::vector<int> from;
  bool operator==(const BoxTransfer&) const = default;
};

// What carries the pieces of a step.
enum class CollectiveKind { copy, all_gather, reduce_scatter, all_reduce, all_to_all };
std::string_view name(CollectiveKind collective);

// One operation of one group: nobody outside it is concerned.
struct ExchangeStep {
  CollectiveKind by = CollectiveKind::copy;
  std::vector<int> ranks;              // in the group's order; reductions run in it
  std::vector<BoxTransfer> transfers;  // by receiver, then by box
  bool operator==(const ExchangeStep&) const = default;
};

// Elements that a change sends, as its steps say: the messages of all ranks, the busiest sender and receiver, operations one after the
// other.
struct RedistributeCost {
  int64_t elements = 0;
  int64_t elements_sent_max = 0;
  int64_t elements_received_max = 0;
  int rounds = 0;  // 0: nothing is sent
  bool operator==(const RedistributeCost&) const = default;
};

// How one change of placement is done: who sends what to whom, and by which collective. A pure function of the change, so every rank that
// asks gets the same. At most two rounds: the second one spreads what the first one has reduced.
//
// Each receiver gets every element it lacks once (once from each partial value): from its own replica where it stands in one, else from
// the replicas in turn. Partial values that several ranks want are reduced at one of them, in even shares, and then spread.
class RedistributePlan {
 public:
  explicit RedistributePlan(LayoutChange change);

  const LayoutChange& change() const { return change_; }
  Partial::Reduce reduce() const { return reduce_; }
  const std::vector<std::vector<ExchangeStep>>& rounds() const { return rounds_; }
  // The step of a round that a rank takes part in; null where it does nothing.
  const ExchangeStep* step_of(size_t round, int rank) const;

  // What a rank holds before and after; nothing where it is not in the mesh.
  LocalShard held_before(int rank) const;
  LocalShard held_after(int rank) const;
  int64_t elements_given(int rank) const;  // of what it holds afterwards; the rest is the reduction's identity
  // Whether a rank's result is its input as it stands.
  bool keeps(int rank) const;

  // Elements from rank to rank. Of an all-reduce, what reducing even shares and spreading them takes.
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

// Plans by change, so that a change done every step is planned once. Borrow one for as long as the work lasts: old plans are forgotten.
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
