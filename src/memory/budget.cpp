#include "memory/budget.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/text.h"

namespace cairn::memory {
namespace {

constexpr size_t kHoldersNamed = 3;
constexpr std::chrono::milliseconds kLookAgain{50};  // a clock that a test moves wakes nobody

}  // namespace

Budget::Budget(std::string key, int64_t bytes) : key_(std::move(key)), ranges_(bytes, kPageBytes) {}

std::optional<Range> Budget::take_locked(int64_t bytes, base::MemoryUse use, const std::string& label) {
  const std::optional<Range> range = ranges_.take(bytes);
  if (!range) return std::nullopt;
  holders_[range->offset] = {range->bytes, use, label};
  books_.book(use, range->bytes);
  return range;
}

std::optional<Range> Budget::try_take(int64_t bytes, base::MemoryUse use, const std::string& label) {
  const std::lock_guard lock(mutex_);
  return take_locked(bytes, use, label);
}

Range Budget::take(int64_t bytes, base::MemoryUse use, const std::string& label) {
  const std::lock_guard lock(mutex_);
  const std::optional<Range> range = take_locked(bytes, use, label);
  if (!range) refuse(bytes, label);
  return *range;
}

Range Budget::wait_and_take(int64_t bytes, base::MemoryUse use, const std::string& label, const base::Clock& clock,
                            std::chrono::nanoseconds deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const std::optional<Range> range = take_locked(bytes, use, label)) return *range;
    const std::chrono::nanoseconds left = deadline - clock.now();
    if (left.count() <= 0 || bytes > ranges_.capacity()) refuse(bytes, label);
    returned_.wait_for(lock, std::min<std::chrono::nanoseconds>(left, kLookAgain));
  }
}

void Budget::give_back(Range range) {
  {
    const std::lock_guard lock(mutex_);
    const auto holder = holders_.find(range.offset);
    CAIRN_CHECK(holder != holders_.end() && holder->second.bytes == range.bytes, "{}: nobody holds {} bytes at {}", key_, range.bytes,
                range.offset);
    books_.book(holder->second.use, -range.bytes);
    holders_.erase(holder);
    ranges_.give_back(range);
  }
  returned_.notify_all();
}

void Budget::refuse(int64_t bytes, const std::string& label) const {
  std::string uses;
  for (const base::MemoryTags::Bytes& one : books_.list())
    if (one.now > 0) uses += fmt::format("{}{} {}", uses.empty() ? "" : ", ", base::name(one.use), base::human_bytes(one.now));
  std::vector<const Holder*> largest;
  for (const auto& [offset, holder] : holders_) largest.push_back(&holder);
  std::stable_sort(largest.begin(), largest.end(), [](const Holder* a, const Holder* b) { return a->bytes > b->bytes; });
  std::string names;
  for (size_t i = 0; i < std::min(largest.size(), kHoldersNamed); ++i)
    names += fmt::format("{}{} {}", i == 0 ? "" : ", ", largest[i]->label, base::human_bytes(largest[i]->bytes));
  throw Error(Error::Kind::out_of_memory,
              fmt::format("{} = {}: {} needs {}, and {} are free (in one piece {}){}. Raise it, or hold less at once.", key_,
                          base::human_bytes(ranges_.capacity()), label, base::human_bytes(bytes), base::human_bytes(ranges_.free_bytes()),
                          base::human_bytes(ranges_.largest_free()),
                          uses.empty() ? std::string() : fmt::format(". In use: {}; the largest: {}", uses, names)));
}

int64_t Budget::capacity() const { return ranges_.capacity(); }

int64_t Budget::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return ranges_.free_bytes();
}

int64_t Budget::largest_free() const {
  const std::lock_guard lock(mutex_);
  return ranges_.largest_free();
}

}  // namespace cairn::memory
