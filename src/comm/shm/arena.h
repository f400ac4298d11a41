#pragma once
#include <cstddef>
#include <cstdint>
#include <map>

namespace cairn::comm {

// A first-fit allocator in one range of memory; freed neighbours are merged. For one thread.
class Arena {
 public:
  Arena(std::byte* begin, int64_t bytes);

  void* allocate(int64_t bytes);  // page-aligned, in whole pages of 4 KiB; null: no free range is long enough
  void free(void* piece);
  bool holds(const void* data, int64_t bytes) const;
  int64_t offset_of(const void* data) const { return static_cast<const std::byte*>(data) - begin_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* begin_;
  int64_t bytes_;
  std::map<int64_t, int64_t> free_;  // offset -> length
  std::map<int64_t, int64_t> used_;
};

}  // namespace cairn::comm
