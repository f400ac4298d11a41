// Puts pieces of unequal length into bins of one size, wasting little.
#pragma once
#include <cstdint>
#include <set>
#include <utility>

namespace cairn::data {

// Best fit among the bins that are open: a piece goes where the least room is left after it, else into a new bin. At most `open_max`
// stay open, the fullest is closed first, so that time and memory per piece are bounded. A function of the sizes in their order.
class Packer {
 public:
  Packer(int64_t capacity, int64_t open_max) : capacity_(capacity), open_max_(open_max) {}

  // The bin that a piece of this size, 1 to capacity, goes into; bins are numbered in the order in which they are begun.
  int64_t place(int64_t size);
  int64_t bins() const { return bins_; }

 private:
  int64_t capacity_;
  int64_t open_max_;
  int64_t bins_ = 0;
  std::set<std::pair<int64_t, int64_t>> open_;  // (room left, bin)
};

}  // namespace cairn::data
