#include "memory/disk/arbiter.h"

#include <string>

#include <gtest/gtest.h>

#include "memory/disk/disk_model.h"
#include "memory/disk_folder.h"

namespace cairn::memory {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds kFar = std::chrono::hours(1);

// The ids of the next blocks, in order.
std::string order(DiskArbiter& arbiter, nanoseconds now, int blocks) {
  std::string ids;
  for (int i = 0; i < blocks; ++i)
    if (const auto block = arbiter.next(now)) ids += std::to_string(block->id);
  return ids;
}

TEST(DiskArbiter, ServesTheMostUrgentClassAndWithinItTheEarliestDeadline) {
  DiskArbiter arbiter(milliseconds(100), 100);
  arbiter.push({1, IoClass::write_back, true, 100, {}, kFar});
  arbiter.push({2, IoClass::states, false, 100, {}, kFar});
  arbiter.push({3, IoClass::parameters, false, 100, {}, kFar});
  arbiter.push({4, IoClass::activations, false, 100, {}, kFar});
  arbiter.push({5, IoClass::parameters, false, 100, {}, milliseconds(50)});
  EXPECT_EQ(order(arbiter, milliseconds(1), 9), "53421");
}

TEST(DiskArbiter, LetsUrgentTransfersInBetweenTheBlocksOfALongOne) {
  DiskArbiter arbiter(milliseconds(100), 100);
  arbiter.push({1, IoClass::write_back, true, 351, {}, kFar});
  const auto first = arbiter.next(milliseconds(0));
  EXPECT_EQ(first->bytes, 100);
  arbiter.push({2, IoClass::parameters, false, 60, {}, kFar});
  EXPECT_EQ(arbiter.next(milliseconds(0))->id, 2U);
  EXPECT_EQ(arbiter.next(milliseconds(0))->offset, 100);
  const auto third = arbiter.next(milliseconds(0)), last = arbiter.next(milliseconds(0));
  EXPECT_EQ(third->bytes, 100);
  EXPECT_EQ(last->bytes, 51);
  EXPECT_FALSE(arbiter.has(1));
  arbiter.push({3, IoClass::states, false, 225, {}, kFar});
  EXPECT_EQ(arbiter.next(milliseconds(0))->bytes, 100);
  EXPECT_EQ(arbiter.next(milliseconds(0))->bytes, 125);  // a rest of a quarter joins the last block
}

// Parameters arrive without end; what is written back must still get through.
TEST(DiskArbiter, StarvesNobody) {
  DiskArbiter arbiter(milliseconds(10), 100);
  arbiter.push({1, IoClass::write_back, true, 100, {}, kFar});
  uint64_t id = 2;
  int served = -1;
  for (int ms = 0; ms < 100 && served < 0; ++ms) {
    arbiter.push({id++, IoClass::parameters, false, 100, milliseconds(ms), kFar});
    arbiter.push({id++, IoClass::parameters, false, 100, milliseconds(ms), kFar});  // twice what the disk can do
    if (arbiter.next(milliseconds(ms))->id == 1) served = ms;
  }
  EXPECT_EQ(served, 30);  // three classes up, 10 ms each: older than all parameters then
}

TEST(DiskArbiter, WithdrawsPromotesAndExpiresWhatHasNotBegun) {
  DiskArbiter arbiter(milliseconds(100), 100);
  arbiter.push({1, IoClass::write_back, true, 300, {}, milliseconds(5)});
  arbiter.push({2, IoClass::states, false, 100, {}, milliseconds(5)});
  arbiter.push({3, IoClass::states, false, 100, {}, milliseconds(50)});
  arbiter.promote(1, IoClass::parameters);
  EXPECT_EQ(arbiter.next(milliseconds(0))->id, 1U);
  arbiter.promote(1, IoClass::write_back);  // never less urgent
  EXPECT_EQ(arbiter.next_deadline(), milliseconds(5));
  EXPECT_FALSE(arbiter.withdraw(1));  // begun
  EXPECT_EQ(arbiter.expire(milliseconds(5)), std::vector<uint64_t>{2});
  EXPECT_EQ(arbiter.next(milliseconds(6))->id, 1U);
  EXPECT_TRUE(arbiter.withdraw(3));
  EXPECT_FALSE(arbiter.withdraw(3));
  EXPECT_EQ(order(arbiter, milliseconds(6), 5), "1");
}

TEST(DiskArbiter, ServesOnlyTheDirectionsThatAreAllowed) {
  DiskArbiter arbiter(milliseconds(100), 100);
  arbiter.push({1, IoClass::parameters, false, 100, {}, kFar});
  arbiter.push({2, IoClass::write_back, true, 100, {}, kFar});
  EXPECT_FALSE(arbiter.next(milliseconds(0), false, false));
  EXPECT_EQ(arbiter.next(milliseconds(0), false, true)->id, 2U);
  EXPECT_FALSE(arbiter.next(milliseconds(0), false, true));
}

TEST(DiskShaper, TakesTheTimeOfItsRateAndAddsLatency) {
  DiskShaper shaper({.read_bytes_per_s = 1e6, .write_bytes_per_s = 5e5, .latency = milliseconds(3)}, 0);
  EXPECT_EQ(shaper.begin(false, 10'000, milliseconds(0)), milliseconds(13));
  EXPECT_EQ(shaper.idle_from(false), milliseconds(10));
  EXPECT_EQ(shaper.begin(true, 10'000, milliseconds(10)), milliseconds(33));  // reads and writes share the disk
  EXPECT_EQ(shaper.begin(false, 1'000, milliseconds(30) + std::chrono::microseconds(800)), milliseconds(34));  // late by less than 1 ms
  EXPECT_EQ(shaper.begin(false, 1'000, milliseconds(100)), milliseconds(104));
}

TEST(DiskShaper, KeepsReadsAndWritesApartWhereTheDiskIsDuplex) {
  DiskShaper shaper({.read_bytes_per_s = 1e6, .write_bytes_per_s = 1e6, .duplex = true}, 0);
  EXPECT_EQ(shaper.begin(false, 10'000, milliseconds(0)), milliseconds(10));
  EXPECT_EQ(shaper.begin(true, 5'000, milliseconds(0)), milliseconds(5));
}

TEST(DiskShaper, DrawsJitterFromItsSeed) {
  const DiskModel model{.latency = milliseconds(10), .jitter = 0.5};
  DiskShaper a(model, 1), b(model, 1), c(model, 2);
  bool differs = false;
  for (int i = 0; i < 20; ++i) {
    const nanoseconds begun = milliseconds(5 * i), done = a.begin(false, 1, begun);
    EXPECT_EQ(done, b.begin(false, 1, begun));
    differs = differs || done != c.begin(false, 1, begun);
    EXPECT_GE(done, begun + milliseconds(10));
    EXPECT_LT(done, begun + milliseconds(15));
  }
  EXPECT_TRUE(differs);
}

TEST(DiskModel, RefusesImpossibleValues) {
  EXPECT_EQ(message_of([] { check({.read_bytes_per_s = -1}); }), "bad_input: disk.read_bytes_per_s = -1: must not be negative");
  EXPECT_EQ(message_of([] { check({.jitter = -0.5}); }), "bad_input: disk.jitter = -0.5: must not be negative");
}

}  // namespace
}  // namespace cairn::memory
