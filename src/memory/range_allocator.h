#pragma once
#include <cstdint>
#include <map>
#include <optional>

namespace cairn::memory {

// A piece of a pool or of a file.
struct Range {
  int64_t offset = 0, bytes = 0;
};

// Where pieces of a range of numbers lie: best fit, lowest first among equals, neighbours join when they are given back. Every piece is
// a multiple of `unit`. Not thread-safe.
class RangeAllocator {
 public:
  RangeAllocator(int64_t capacity, int64_t unit);

  std::optional<Range> take(int64_t bytes);  // rounded up to units; nothing: no piece is long enough
  void give_back(Range range);

  int64_t capacity() const { return capacity_; }
  int64_t free_bytes() const { return free_bytes_; }
  int64_t largest_free() const;

 private:
  const int64_t unit_, capacity_;
  int64_t free_bytes_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes
};

}  // namespace cairn::memory
