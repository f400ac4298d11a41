#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

namespace cairn::memory {

// Regions of a fixed piece of memory, given out and taken back in one order. A region is never split at the end of the memory, so some
// bytes there may be left out. Not thread-safe.
class ByteRing {
 public:
  explicit ByteRing(std::span<std::byte> memory) : memory_(memory) {}

  // `bytes` at an address that leaves `remainder` when divided by a page; -1: at the start of a cache line. Null: there is no room until
  // older regions are given back.
  std::byte* reserve(int64_t bytes, int64_t remainder = -1);
  // Gives the oldest region back.
  void release_oldest();

  int64_t capacity() const { return static_cast<int64_t>(memory_.size()); }
  int64_t used() const;                   // by regions, and by what lies between them
  int64_t peak() const { return peak_; }  // since the last call of forget_peak
  void forget_peak() { peak_ = used(); }

 private:
  struct Region {
    int64_t begin, end;
  };
  int64_t aligned(int64_t from, int64_t remainder) const;

  std::span<std::byte> memory_;
  std::deque<Region> regions_;  // the oldest first
  int64_t peak_ = 0;
};

}  // namespace cairn::memory
