#include "memory/range_allocator.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace cairn::memory {

RangeAllocator::RangeAllocator(int64_t capacity, int64_t unit)
    : unit_(unit), capacity_(std::max<int64_t>(capacity, 0) / unit * unit), free_bytes_(capacity_) {
  if (capacity_ > 0) free_[0] = capacity_;
}

std::optional<Range> RangeAllocator::take(int64_t bytes) {
  CAIRN_CHECK(bytes > 0, "a piece of {} bytes", bytes);
  bytes = (bytes + unit_ - 1) / unit_ * unit_;
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it)
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  if (best == free_.end()) return std::nullopt;
  const Range range{best->first, bytes};
  const int64_t rest = best->second - bytes;
  free_.erase(best);
  if (rest > 0) free_[range.offset + bytes] = rest;
  free_bytes_ -= bytes;
  return range;
}

void RangeAllocator::give_back(Range range) {
  auto next = free_.lower_bound(range.offset);
  CAIRN_CHECK(next == free_.end() || range.offset + range.bytes <= next->first, "a piece at {} is given back twice", range.offset);
  free_bytes_ += range.bytes;
  if (next != free_.end() && range.offset + range.bytes == next->first) {
    range.bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    CAIRN_CHECK(before->first + before->second <= range.offset, "a piece at {} is given back twice", range.offset);
    if (before->first + before->second == range.offset) {
      before->second += range.bytes;
      return;
    }
  }
  free_[range.offset] = range.bytes;
}

int64_t RangeAllocator::largest_free() const {
  int64_t largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace cairn::memory
