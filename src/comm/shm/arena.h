#pragma once
#include <cstddef>
#include <cstdint>
#include <map>

namespace cairn::comm {

// Hands out pieces of one range of memory, the lowest that fits; freed neighbours grow together again. Used by one thread.
class Arena {
 public:
  Arena(std::byte* begin, int64_t bytes);

  void* allocate(int64_t bytes);  // a multiple of 4 KiB at such an address; null where no piece is large enough
  void free(void* piece);
  bool holds(const void* data, int64_t bytes) const;
  int64_t offset_of(const void* data) const { return static_cast<const std::byte*>(data) - begin_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* begin_;
  int64_t bytes_;
  std::map<int64_t, int64_t> free_;  // where, how long
  std::map<int64_t, int64_t> used_;
};

}  // namespace cairn::comm
