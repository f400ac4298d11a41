#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn::base {

// What memory is used for, as reports list it.
enum class MemoryUse { parameters, gradients, optimizer, activations, buckets, snapshot, data, other };
inline constexpr int kMemoryUses = 8;
std::string_view name(MemoryUse use);

// Bytes by use, current and peak, counted where they are allocated and freed. Thread-safe.
class MemoryTags {
 public:
  void book(MemoryUse use, int64_t bytes);  // negative: freed

  struct Bytes {
    MemoryUse use;
    int64_t now, peak;
  };
  Bytes of(MemoryUse use) const;
  std::vector<Bytes> list() const;  // every use, in the order of the enum
  int64_t total() const;
  int64_t total_peak() const;

 private:
  struct Count {
    std::atomic<int64_t> now{0}, peak{0};
    void add(int64_t bytes);
  };
  std::array<Count, kMemoryUses> counts_;
  Count total_;
};

// RAII: counts `bytes` as long as it lives. Movable.
class BookedMemory {
 public:
  BookedMemory() = default;
  BookedMemory(MemoryTags& tags, MemoryUse use, int64_t bytes);  // the tags must outlive this
  ~BookedMemory();
  BookedMemory(BookedMemory&& other) noexcept;
  BookedMemory& operator=(BookedMemory&& other) noexcept;

 private:
  MemoryTags* tags_ = nullptr;
  MemoryUse use_ = MemoryUse::other;
  int64_t bytes_ = 0;
};

int64_t resident_bytes();       // of this process now (VmRSS); 0 where the system does not say
int64_t peak_resident_bytes();  // the most it ever was (VmHWM)
int64_t machine_bytes();        // all memory of this machine
int64_t available_bytes();      // what could be allocated without swapping

}  // namespace cairn::base
