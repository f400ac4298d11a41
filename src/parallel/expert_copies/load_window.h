#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace cairn::parallel {

// The load of each expert over the last w steps: the sum of the global token counts, as integers, so that all ranks hold the same and
// decide the same. Before the first step every expert has load 1 (uniform). The counts of one step come from one sum over all ranks.
class LoadWindow {
 public:
  LoadWindow(int layers, int experts, int steps = 5);

  // The global counts of a step, [layers][experts].
  void add(std::vector<int64_t> counts);
  std::span<const int64_t> load(int layer) const;

  // For snapshots: the counts of the steps in the window, the oldest first.
  const std::deque<std::vector<int64_t>>& history() const { return history_; }

 private:
  size_t layers_, experts_, steps_;
  std::deque<std::vector<int64_t>> history_;
  std::vector<int64_t> sums_;
};

}  // namespace cairn::parallel
