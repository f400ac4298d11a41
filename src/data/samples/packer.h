// Online bin packing: puts pieces of unequal length into bins of one size.
#pragma once
#include <cstdint>
#include <set>
#include <utility>

namespace cairn::data {

// Best fit with bounded space: a piece goes into the open bin where the least room is left after it, else into a new bin. At most
// `open_max` bins stay open; the fullest is closed first, so time and memory per piece are bounded. The result depends on the sizes and
// their order only.
class Packer {
 public:
  Packer(int64_t capacity, int64_t open_max) : capacity_(capacity), open_max_(open_max) {}

  // The bin that a piece of this size, 1 to capacity, goes into; bins are numbered in the order in which they are opened.
  int64_t place(int64_t size);
  int64_t bins() const { return bins_; }

 private:
  int64_t capacity_;
  int64_t open_max_;
  int64_t bins_ = 0;
  std::set<std::pair<int64_t, int64_t>> open_;  // (room left, bin)
};

}  // namespace cairn::data
