#include "base/text.h"

#include <gtest/gtest.h>

namespace cairn::base {
namespace {

TEST(Text, WritesBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1536LL << 20), "1.50 GiB");
  EXPECT_EQ(human_bytes((1LL << 20) - 1), "1.00 MiB");  // not "1024 KiB"
  EXPECT_EQ(human_bytes(12LL << 20), "12.0 MiB");
  EXPECT_EQ(human_bytes(-2048), "-2.00 KiB");
  EXPECT_EQ(human_bytes(INT64_MAX), "8.00 EiB");
  EXPECT_EQ(human_bytes(INT64_MIN), "-8.00 EiB");
}

TEST(Text, WritesCounts) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(950), "950");
  EXPECT_EQ(human_count(999.7), "1.00k");
  EXPECT_EQ(human_count(12'700'000), "12.7M");
  EXPECT_EQ(human_count(1.2e9), "1.20B");
  EXPECT_EQ(human_count(5e16), "50000T");
  EXPECT_EQ(human_count(0.5), "0.50");
  EXPECT_EQ(human_count(-1500), "-1.50k");
}

TEST(Text, WritesDurations) {
  using namespace std::chrono_literals;
  EXPECT_EQ(human_duration(0ns), "0 s");
  EXPECT_EQ(human_duration(400us), "400 us");
  EXPECT_EQ(human_duration(12'340ms), "12.3 s");
  EXPECT_EQ(human_duration(59'960ms), "1m 00s");  // not "60.0 s"
  EXPECT_EQ(human_duration(80s), "1m 20s");
  EXPECT_EQ(human_duration(3599'700ms), "1h 00m");
  EXPECT_EQ(human_duration(125min), "2h 05m");
  EXPECT_EQ(human_duration(76h), "3d 04h");
  EXPECT_EQ(human_duration(-80s), "-1m 20s");
}

}  // namespace
}  // namespace cairn::base
