// A caching allocator for CPU tensors, like libtorch's for CUDA: freed blocks go to a free list per size class and are reused by the next
// tensor of that class. A steady training step then allocates nothing from the system and takes no page faults.
#include "memory/host_allocator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include "base/error.h"

namespace cairn::memory {
namespace {

constexpr size_t kAlignment = 64;              // a cache line, and the widest vector
constexpr size_t kHugePage = size_t{2} << 20;  // larger blocks ask for huge pages: fewer faults, fewer TLB misses
constexpr int kClasses = 8 * 64;

// Size classes: eight to each power of two, so that at most an eighth of a block is padding.
struct SizeClass {
  int index;
  size_t bytes;
};

SizeClass size_class(size_t bytes) {
  bytes = bytes < kAlignment * 8 ? (bytes + kAlignment - 1) / kAlignment * kAlignment : bytes;
  if (bytes <= kAlignment * 8) return {static_cast<int>(bytes / kAlignment), bytes};
  const int power = std::bit_width(bytes - 1) - 1;  // 2^power < bytes <= 2^(power+1)
  const size_t step = size_t{1} << (power - 3);
  const size_t rounded = (bytes + step - 1) / step * step;
  return {8 * power + static_cast<int>((rounded >> (power - 3)) - 8) - 1, rounded};
}

// The one allocator of the process. It is never destroyed: tensors with static lifetime may outlive any order of destruction.
class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* block = take(bytes);
    if (block != nullptr) report(block, static_cast<int64_t>(size_class(bytes).bytes));
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  static HostAllocator& instance() {
    static HostAllocator* const one = new HostAllocator;
    return *one;
  }

  HostMemory memory() {
    const std::lock_guard lock(mutex_);
    return {current_, peak_, cached_};
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = current_;
  }
  // Returns the most bytes that may be in use.
  int64_t begin_limit(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (limits_.empty()) refused_ = 0;
    limits_.push_back(current_ + bytes);
    return limits_.back();
  }
  void end_limit(int64_t most) {
    const std::lock_guard lock(mutex_);
    limits_.erase(std::find(limits_.begin(), limits_.end(), most));
  }
  int64_t refused() {
    const std::lock_guard lock(mutex_);
    return refused_;
  }
  void trim() {
    std::vector<void*> blocks;
    {
      const std::lock_guard lock(mutex_);
      for (std::vector<void*>& list : free_) {
        blocks.insert(blocks.end(), list.begin(), list.end());
        list = {};
      }
      cached_ = 0;
    }
    for (void* block : blocks) std::free(block);
  }

 private:
  // Each block is preceded by one cache line that holds its size class.
  struct alignas(kAlignment) Header {
    SizeClass size;
  };

  void* take(size_t bytes) {
    if (bytes == 0) return nullptr;
    const SizeClass size = size_class(bytes);
    {
      const std::lock_guard lock(mutex_);
      check_limits(static_cast<int64_t>(size.bytes));
      current_ += static_cast<int64_t>(size.bytes);
      peak_ = std::max(peak_, current_);
      std::vector<void*>& list = free_[static_cast<size_t>(size.index)];
      if (!list.empty()) {
        void* start = list.back();
        list.pop_back();
        cached_ -= static_cast<int64_t>(size.bytes);
        return static_cast<char*>(start) + sizeof(Header);
      }
    }
    return fresh(size);
  }

  void check_limits(int64_t bytes) {
    for (const int64_t most : limits_) {
      if (current_ + bytes <= most) continue;
      refused_ = std::max(refused_, bytes);
      throw Error(Error::Kind::out_of_memory,
                  fmt::format("out of host memory: a tensor of {} bytes does not fit beside {} bytes in use; the "
                              "limit is {}",
                              bytes, current_, most));
    }
  }

  static void* from_system(size_t bytes) {
    const size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
    void* start = nullptr;
    if (posix_memalign(&start, alignment, bytes) != 0) return nullptr;
    if (alignment == kHugePage) madvise(start, bytes, MADV_HUGEPAGE);  // best effort
    return start;
  }

  void* fresh(SizeClass size) {
    const size_t whole = size.bytes + sizeof(Header);
    void* start = from_system(whole);
    if (start == nullptr) {
      trim();  // cached blocks of other sizes may be what is missing
      start = from_system(whole);
    }
    if (start == nullptr) {
      const std::lock_guard lock(mutex_);
      current_ -= static_cast<int64_t>(size.bytes);
      throw Error(Error::Kind::out_of_memory, fmt::format("out of host memory: a tensor of {} bytes does not fit beside {} bytes in use; "
                                                          "lower train.micro_batch or the model size",
                                                          size.bytes, current_));
    }
    new (start) Header{size};
    return static_cast<char*>(start) + sizeof(Header);
  }

  static void release(void* block) {
    if (block == nullptr) return;
    instance().report(block, -static_cast<int64_t>(reinterpret_cast<Header*>(static_cast<char*>(block) - sizeof(Header))->size.bytes));
    instance().put_back(block);
  }

  // Reports to whoever counts allocations of this thread (a profiler, train/report/memory_report.h).
  void report(void* block, int64_t bytes) {
    if (!c10::memoryProfilingEnabled()) return;
    const HostMemory now = memory();
    c10::reportMemoryUsageToProfiler(block, bytes, static_cast<size_t>(now.current_bytes),
                                     static_cast<size_t>(now.current_bytes + now.cached_bytes), c10::Device(c10::DeviceType::CPU));
  }

  void put_back(void* block) {
    void* start = static_cast<char*>(block) - sizeof(Header);
    const SizeClass size = static_cast<Header*>(start)->size;
    const std::lock_guard lock(mutex_);
    current_ -= static_cast<int64_t>(size.bytes);
    cached_ += static_cast<int64_t>(size.bytes);
    free_[static_cast<size_t>(size.index)].push_back(start);
  }

  std::mutex mutex_;
  std::array<std::vector<void*>, kClasses> free_;
  int64_t current_ = 0, peak_ = 0, cached_ = 0;
  std::vector<int64_t> limits_;  // of current_
  int64_t refused_ = 0;
};

}  // namespace

void install_host_allocator() { c10::SetCPUAllocator(&HostAllocator::instance(), /*priority=*/100); }

HostMemory host_memory() { return HostAllocator::instance().memory(); }

void reset_host_peak() { HostAllocator::instance().reset_peak(); }

void trim_host_memory() { HostAllocator::instance().trim(); }

ScopedHostLimit::ScopedHostLimit(int64_t bytes) : current_bytes_max_(HostAllocator::instance().begin_limit(bytes)) {}
ScopedHostLimit::~ScopedHostLimit() { HostAllocator::instance().end_limit(current_bytes_max_); }
int64_t ScopedHostLimit::refused_bytes() const { return HostAllocator::instance().refused(); }

}  // namespace cairn::memory
