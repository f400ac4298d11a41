#include "planner/experts/balanced_assignment.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace cairn::planner {
namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;

class BalancedAssignment {
 public:
  BalancedAssignment(std::span<const int64_t> gain, int items, int bins)
      : gain_(gain), items_(items), bins_(bins), bin_of_(static_cast<size_t>(items), -1), filled_(static_cast<size_t>(bins), 0) {}

  std::vector<int> solve() {
    for (int item = 0; item < items_; ++item) insert(item);
    return bin_of_;
  }

 private:
  struct Edge {
    int64_t cost = kFar;
    int item = -1;  // that moves along it
  };
  int64_t gain(int item, int bin) const { return gain_[static_cast<size_t>(item) * static_cast<size_t>(bins_) + static_cast<size_t>(bin)]; }
  Edge& edge(int from, int to) { return edges_[static_cast<size_t>(from) * static_cast<size_t>(bins_) + static_cast<size_t>(to)]; }

  void find_edges(int placed) {
    edges_.assign(static_cast<size_t>(bins_) * static_cast<size_t>(bins_), {});
    for (int item = 0; item < placed; ++item) {
      const int from = bin_of_[static_cast<size_t>(item)];
      for (int to = 0; to < bins_; ++to) {
        const int64_t cost = gain(item, from) - gain(item, to);
        if (to != from && cost < edge(from, to).cost) edge(from, to) = {cost, item};
      }
    }
  }

  void insert(int item) {
    find_edges(item);
    std::vector<int64_t> distance(static_cast<size_t>(bins_));
    std::vector<int> before(static_cast<size_t>(bins_), -1);
    for (int bin = 0; bin < bins_; ++bin) distance[static_cast<size_t>(bin)] = -gain(item, bin);
    for (bool changed = true; changed;) {
      changed = false;
      for (int from = 0; from < bins_; ++from)
        for (int to = 0; to < bins_; ++to) {
          if (edge(from, to).cost == kFar || distance[static_cast<size_t>(from)] + edge(from, to).cost >= distance[static_cast<size_t>(to)])
            continue;
          distance[static_cast<size_t>(to)] = distance[static_cast<size_t>(from)] + edge(from, to).cost;
          before[static_cast<size_t>(to)] = from;
          changed = true;
        }
    }
    int end = -1;
    for (int bin = 0; bin < bins_; ++bin)
      if (filled_[static_cast<size_t>(bin)] < items_ / bins_ &&
          (end < 0 || distance[static_cast<size_t>(bin)] < distance[static_cast<size_t>(end)]))
        end = bin;
    ++filled_[static_cast<size_t>(end)];
    while (before[static_cast<size_t>(end)] >= 0) {
      const int from = before[static_cast<size_t>(end)];
      bin_of_[static_cast<size_t>(edge(from, end).item)] = end;
      end = from;
    }
    bin_of_[static_cast<size_t>(item)] = end;
  }

  std::span<const int64_t> gain_;
  int items_, bins_;
  std::vector<int> bin_of_, filled_;
  std::vector<Edge> edges_;
};

}  // namespace

std::vector<int> assign_balanced(std::span<const int64_t> gain, int items, int bins) {
  CAIRN_CHECK(bins > 0 && items % bins == 0 && gain.size() == static_cast<size_t>(items) * static_cast<size_t>(bins),
              "{} gains of {} items in {} bins", gain.size(), items, bins);
  return BalancedAssignment(gain, items, bins).solve();
}

}  // namespace cairn::planner
