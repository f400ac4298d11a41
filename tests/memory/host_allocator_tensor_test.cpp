#include "memory/host_allocator.h"

#include <sys/resource.h>
#include <thread>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/aten.h"

namespace cairn::memory {
namespace {

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

at::Tensor tensor_of(int64_t bytes) { return at::empty({bytes}, at::kByte); }

// A step that makes, fills and drops tensors as training does.
void one_step() {
  std::vector<at::Tensor> kept;
  for (int64_t megabytes : {4, 16, 64, 7, 5}) {
    kept.push_back(tensor_of(megabytes << 20));
    kept.back().fill_(1);
    tensor_of((megabytes << 20) - 12345).fill_(2);
  }
}

TEST(HostAllocator, ARepeatedStepTakesNoPageFaults) {
  install_host_allocator();
  one_step();
  const int64_t before = page_faults();
  for (int i = 0; i < 3; ++i) one_step();
  EXPECT_LE(page_faults() - before, 20);  // a fresh 4 MB tensor alone would take 1024
  trim_host_memory();
}

TEST(HostAllocator, AlignsEveryBlock) {
  install_host_allocator();
  for (int64_t bytes : {1, 63, 64, 65, 511, 513, 4097, 1 << 20, (5 << 20) + 1}) {
    const at::Tensor x = tensor_of(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data_ptr()) % 64, 0u) << bytes;
  }
}

TEST(HostAllocator, CountsLiveCachedAndPeakBytes) {
  install_host_allocator();
  trim_host_memory();
  const HostMemory start = host_memory();
  EXPECT_EQ(start.cached_bytes, 0);
  reset_host_peak();
  {
    const at::Tensor x = tensor_of(1 << 20), y = tensor_of(3 << 20);
    EXPECT_EQ(host_memory().current_bytes - start.current_bytes, 4 << 20);
  }
  EXPECT_EQ(host_memory().current_bytes, start.current_bytes);
  EXPECT_EQ(host_memory().peak_bytes - start.current_bytes, 4 << 20);
  EXPECT_EQ(host_memory().cached_bytes, 4 << 20);
  const at::Tensor again = tensor_of(1 << 20);
  EXPECT_EQ(host_memory().cached_bytes, 3 << 20);
  trim_host_memory();
  EXPECT_EQ(host_memory().cached_bytes, 0);
  reset_host_peak();
  EXPECT_EQ(host_memory().peak_bytes, host_memory().current_bytes);
}

TEST(HostAllocator, WastesAtMostAnEighth) {
  install_host_allocator();
  for (int64_t bytes : {513, 1000, 4097, 65537, 99999, (1 << 20) + 1, (9 << 20) + 1}) {
    const int64_t before = host_memory().current_bytes;
    const at::Tensor x = tensor_of(bytes);
    const int64_t taken = host_memory().current_bytes - before;
    EXPECT_GE(taken, bytes);
    EXPECT_LE(static_cast<double>(taken), 1.125 * static_cast<double>(bytes));
  }
}

TEST(HostAllocator, SizesNeverShareABlockThatIsTooSmall) {
  install_host_allocator();
  for (int64_t bytes = 1; bytes < 40000; bytes += 371) tensor_of(bytes).fill_(1);
  std::vector<at::Tensor> all;
  for (int64_t bytes = 40000; bytes > 0; bytes -= 401) {
    all.push_back(tensor_of(bytes));
    all.back().fill_(static_cast<uint8_t>(bytes % 251));
  }
  for (const at::Tensor& x : all) EXPECT_TRUE((x == x.numel() % 251).all().item<bool>()) << x.numel();
}

TEST(HostAllocator, RefusesWhatALimitDoesNotAllow) {
  install_host_allocator();
  const at::Tensor before = tensor_of(1 << 20);
  const int64_t current = host_memory().current_bytes;
  {
    const ScopedHostLimit limit(3 << 20);
    EXPECT_EQ(limit.refused_bytes(), 0);
    const at::Tensor fits = tensor_of(2 << 20);
    EXPECT_THROW(tensor_of(2 << 20), Error);
    EXPECT_EQ(limit.refused_bytes(), 2 << 20);
    EXPECT_EQ(host_memory().current_bytes - current, 2 << 20);
    const ScopedHostLimit lower(0);
    EXPECT_THROW(tensor_of(1), Error);
  }
  EXPECT_EQ(host_memory().current_bytes, current);
  EXPECT_EQ(tensor_of(8 << 20).numel(), 8 << 20);
}

TEST(HostAllocator, TakesBlocksBackFromAnyThread) {
  install_host_allocator();
  const int64_t before = host_memory().current_bytes;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int64_t i = 1; i < 200; ++i) {
        at::Tensor x = tensor_of(i * 1000);
        std::thread([y = std::move(x)]() mutable { y.reset(); }).join();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(host_memory().current_bytes, before);
}

TEST(HostAllocator, SaysWhatDidNotFit) {
  install_host_allocator();
  try {
    tensor_of(int64_t{1} << 50);
    FAIL() << "a petabyte was handed out";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("out of host memory: a tensor of 1125899906842624 bytes"), std::string::npos) << error.what();
  }
}

// Whoever counts allocations of a thread hears of all of them, by what the allocator takes for each.
TEST(HostAllocator, TellsWhoeverCounts) {
  install_host_allocator();
  struct Counter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t allocated, size_t, c10::Device) override {
      now += bytes;
      said = static_cast<int64_t>(allocated);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0, said = 0;
  };
  const int64_t before = host_memory().current_bytes;
  const auto counter = std::make_shared<Counter>();
  {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, counter);
    at::Tensor one = at::empty({1000}), two = at::empty({77777});
    EXPECT_EQ(counter->now, host_memory().current_bytes - before);
    EXPECT_EQ(counter->said, host_memory().current_bytes);
    one.reset();
    EXPECT_EQ(counter->now, host_memory().current_bytes - before);
  }
  EXPECT_EQ(counter->now, 0);
  const at::Tensor unheard = at::empty({10});
  EXPECT_EQ(counter->now, 0);
}

}  // namespace
}  // namespace cairn::memory
