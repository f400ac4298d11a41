#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/memory_tags.h"
#include "memory/range_allocator.h"

namespace cairn::memory {

inline constexpr int64_t kPageBytes = 4096;  // direct I/O wants addresses, lengths and offsets that are multiples of this

// A fixed number of bytes of one tier, and who holds which of them. Whoever asks for more than is left gets an error that says what it
// needs, what there is, and who has the rest. Thread-safe.
class Budget {
 public:
  // `key`: the recipe key that sets it, for errors ("memory.host_budget").
  Budget(std::string key, int64_t bytes);

  // Whole pages for `label`. Throws out_of_memory.
  Range take(int64_t bytes, base::MemoryUse use, const std::string& label);
  std::optional<Range> try_take(int64_t bytes, base::MemoryUse use, const std::string& label);  // nothing instead of the error
  // Waits until there is room, until `deadline` on this clock. Then the same error.
  Range wait_and_take(int64_t bytes, base::MemoryUse use, const std::string& label, const base::Clock& clock,
                      std::chrono::nanoseconds deadline);
  void give_back(Range range);

  const std::string& key() const { return key_; }
  int64_t capacity() const;
  int64_t free_bytes() const;
  int64_t largest_free() const;
  const base::MemoryTags& books() const { return books_; }  // bytes by use, now and at most

 private:
  struct Holder {
    int64_t bytes;
    base::MemoryUse use;
    std::string label;
  };
  std::optional<Range> take_locked(int64_t bytes, base::MemoryUse use, const std::string& label);
  [[noreturn]] void refuse(int64_t bytes, const std::string& label) const;

  const std::string key_;
  mutable std::mutex mutex_;
  std::condition_variable returned_;
  RangeAllocator ranges_;
  std::map<int64_t, Holder> holders_;  // by offset
  base::MemoryTags books_;
};

}  // namespace cairn::memory
