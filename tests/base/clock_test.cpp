#include "base/clock.h"

#include <gtest/gtest.h>

namespace cairn::base {
namespace {

using namespace std::chrono_literals;

TEST(VirtualClock, MovesOnlyWhenMoved) {
  VirtualClock clock;
  EXPECT_EQ(clock.now(), 0ns);
  clock.advance_by(5ms);
  EXPECT_EQ(clock.now(), 5ms);
  clock.advance_to(3ms);  // never back
  EXPECT_EQ(clock.now(), 5ms);
  clock.advance_by(-1ms);
  EXPECT_EQ(clock.now(), 5ms);
  clock.advance_to(7ms);
  EXPECT_EQ(clock.now(), 7ms);
}

TEST(RealClock, StartsNearZeroAndNeverGoesBack) {
  const RealClock clock;
  auto last = clock.now();
  EXPECT_GE(last, 0ns);
  EXPECT_LT(last, 1s);
  for (int i = 0; i < 1000; ++i) {
    const auto now = clock.now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(WallTime, IsUnixSeconds) {
  EXPECT_GT(wall_time(), 1.7e9);  // after 2023
  EXPECT_LT(wall_time(), 1e11);   // seconds, not milliseconds
}

TEST(Seconds, ConvertsNanoseconds) { EXPECT_DOUBLE_EQ(seconds(1'500'000'000ns), 1.5); }

}  // namespace
}  // namespace cairn::base
