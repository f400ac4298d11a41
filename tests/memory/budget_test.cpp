#include "memory/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory/buffer_pool.h"
#include "memory/disk_folder.h"

namespace cairn::memory {
namespace {

using base::MemoryUse;
using ::testing::HasSubstr;

TEST(RangeAllocator, JoinsNeighboursAndTakesTheSmallestPieceThatFits) {
  RangeAllocator ranges(10 * 7 + 3, 7);
  EXPECT_EQ(ranges.capacity(), 70);
  const Range a = *ranges.take(1), b = *ranges.take(14), c = *ranges.take(8), d = *ranges.take(35);
  EXPECT_EQ(a.bytes, 7);
  EXPECT_EQ(c.offset, 21);
  EXPECT_EQ(ranges.free_bytes(), 0);
  EXPECT_FALSE(ranges.take(1));
  ranges.give_back(d);
  ranges.give_back(b);
  EXPECT_EQ(ranges.take(14)->offset, b.offset);  // fits exactly, though the other piece is longer
  ranges.give_back(b);
  ranges.give_back(c);
  EXPECT_EQ(ranges.largest_free(), 63);
  ranges.give_back(a);
  EXPECT_EQ(ranges.largest_free(), 70);
  EXPECT_THROW(ranges.give_back(a), Error);
}

TEST(Budget, RefusesWithNeedHaveAndHolders) {
  Budget budget("memory.host_budget", 10 * kPageBytes);
  const Range weights = budget.take(3 * kPageBytes, MemoryUse::parameters, "layers.0");
  budget.take(4 * kPageBytes + 1, MemoryUse::activations, "layers.1.mlp");
  EXPECT_EQ(
      message_of([&] { budget.take(3 * kPageBytes, MemoryUse::optimizer, "layers.2"); }),
      "out_of_memory: memory.host_budget = 40.0 KiB: layers.2 needs 12.0 KiB, and 8.00 KiB are free (in one piece 8.00 KiB). In use: "
      "parameters 12.0 KiB, activations 20.0 KiB; the largest: layers.1.mlp 20.0 KiB, layers.0 12.0 KiB. Raise it, or hold less at once.");
  EXPECT_FALSE(budget.try_take(3 * kPageBytes, MemoryUse::optimizer, "layers.2"));
  EXPECT_EQ(budget.books().of(MemoryUse::optimizer).now, 0);
  budget.give_back(weights);
  EXPECT_EQ(budget.books().of(MemoryUse::parameters).now, 0);
  EXPECT_EQ(budget.books().of(MemoryUse::parameters).peak, 3 * kPageBytes);
  EXPECT_TRUE(budget.try_take(5 * kPageBytes, MemoryUse::optimizer, "layers.2") == std::nullopt);  // 3 and 2, but not in one piece
  EXPECT_TRUE(budget.try_take(3 * kPageBytes, MemoryUse::optimizer, "layers.2"));
}

TEST(Budget, WaitsForRoomUntilItsDeadline) {
  Budget budget("memory.host_budget", 2 * kPageBytes);
  const Range held = budget.take(2 * kPageBytes, MemoryUse::data, "first");
  base::RealClock clock;
  EXPECT_THAT(
      message_of([&] { budget.wait_and_take(kPageBytes, MemoryUse::data, "second", clock, clock.now() + std::chrono::milliseconds(5)); }),
      HasSubstr("second needs 4.00 KiB, and 0 B are free"));
  std::thread other([&] { budget.give_back(held); });
  EXPECT_EQ(budget.wait_and_take(kPageBytes, MemoryUse::data, "second", clock, clock.now() + std::chrono::seconds(20)).bytes, kPageBytes);
  other.join();
  const auto begun = clock.now();
  EXPECT_THROW(budget.wait_and_take(3 * kPageBytes, MemoryUse::data, "too long", clock, begun + std::chrono::seconds(20)), Error);
  EXPECT_LT(clock.now() - begun, std::chrono::seconds(10));  // it never fits: no reason to wait
}

TEST(BufferPool, GivesPagesWithRoomForASealAndTakesThemBack) {
  BufferPool pool("memory.device_budget", 4 * kPageBytes);
  Buffer odd = pool.take(1, MemoryUse::parameters, "one byte");
  EXPECT_EQ(odd.size(), 1);
  EXPECT_EQ(std::ssize(odd.whole()), kPageBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(odd.bytes().data()) % kPageBytes, 0U);
  Buffer page = pool.take(kPageBytes, MemoryUse::parameters, "a page");
  EXPECT_EQ(std::ssize(page.whole()), 2 * kPageBytes);  // its seal needs another
  EXPECT_FALSE(pool.try_take(kPageBytes, MemoryUse::parameters, "no room"));
  page = Buffer();
  EXPECT_EQ(pool.budget().free_bytes(), 3 * kPageBytes);
  Buffer moved = std::move(odd);
  EXPECT_FALSE(odd);
  EXPECT_EQ(pool.budget().free_bytes(), 3 * kPageBytes);
}

TEST(BufferPool, PinsItsMemoryAndOutlivesItsOwner) {
  std::vector<std::string> calls;
  Buffer kept;
  {
    BufferPool pool("memory.host_budget", 2 * kPageBytes,
                    {.pin = [&](std::span<std::byte> memory) { calls.push_back("pin " + std::to_string(memory.size())); },
                     .unpin = [&](std::span<std::byte>) { calls.emplace_back("unpin"); }});
    kept = pool.take(10, MemoryUse::data, "kept");
  }
  kept.bytes()[9] = std::byte{1};
  EXPECT_EQ(calls, std::vector<std::string>{"pin 8192"});
  kept = Buffer();
  EXPECT_EQ(calls.size(), 2U);
}

TEST(BufferPool, UsesMemoryOfOthers) {
  std::vector<std::byte> memory(3 * kPageBytes + 5);
  BufferPool pool("memory.device_budget", memory);
  EXPECT_EQ(pool.budget().capacity(), 3 * kPageBytes);
  EXPECT_EQ(pool.take(1, MemoryUse::data, "x").bytes().data(), memory.data());
}

}  // namespace
}  // namespace cairn::memory
