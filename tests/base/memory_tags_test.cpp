#include "base/memory_tags.h"

#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::base {
namespace {

TEST(MemoryTags, KeepsNowAndPeakByUse) {
  MemoryTags tags;
  tags.book(MemoryUse::parameters, 100);
  tags.book(MemoryUse::activations, 50);
  tags.book(MemoryUse::activations, -50);
  tags.book(MemoryUse::gradients, 20);
  EXPECT_EQ(tags.of(MemoryUse::activations).now, 0);
  EXPECT_EQ(tags.of(MemoryUse::activations).peak, 50);
  EXPECT_EQ(tags.total(), 120);
  EXPECT_EQ(tags.total_peak(), 150);  // of the sum, not the sum of peaks
  ASSERT_EQ(tags.list().size(), static_cast<size_t>(kMemoryUses));
  EXPECT_EQ(name(tags.list().back().use), "other");
  EXPECT_EQ(name(MemoryUse::optimizer), "optimizer");
}

TEST(MemoryTags, AddsUpFromManyThreads) {
  MemoryTags tags;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) tags.book(MemoryUse::data, 3), tags.book(MemoryUse::data, -2);
    });
  threads.clear();
  EXPECT_EQ(tags.of(MemoryUse::data).now, 4000);
  EXPECT_GE(tags.of(MemoryUse::data).peak, 4000);
  EXPECT_LE(tags.of(MemoryUse::data).peak, 4000 + 4 * 3);
}

TEST(BookedMemory, GivesBackOnceHoweverMoved) {
  MemoryTags tags;
  {
    BookedMemory a(tags, MemoryUse::buckets, 10);
    BookedMemory b = std::move(a);
    BookedMemory c;
    c = std::move(b);
    EXPECT_EQ(tags.total(), 10);
  }
  EXPECT_EQ(tags.total(), 0);
}

TEST(ResidentBytes, GrowWithWhatIsTouched) {
  constexpr int64_t kBytes = 32 << 20;
  const int64_t before = resident_bytes();
  std::vector<char> block(kBytes, 1);
  EXPECT_GE(resident_bytes() - before, kBytes / 2) << block[7];
  EXPECT_GE(peak_resident_bytes(), resident_bytes() - (4 << 20));
  EXPECT_GT(machine_bytes(), resident_bytes());
  EXPECT_GT(available_bytes(), 0);
  EXPECT_LE(available_bytes(), machine_bytes());
}

}  // namespace
}  // namespace cairn::base
