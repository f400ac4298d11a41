#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "study/benches.h"

namespace cairn::study {
namespace {

using testing::HasSubstr;

TEST(BenchRows, ARowWithoutAGoalIsForInformation) {
  const BenchRow slow = compare("slow", {4, 4, 4}, {1, 1, 1}, "us", Better::lower, 0);
  EXPECT_TRUE(slow.pass);
  EXPECT_THAT(to_table({slow}), HasSubstr("0.250     0.0%      -  no goal"));
}

TEST(BenchRows, AGoalIsReachedOrMissed) {
  const BenchRow just = compare("just", {10, 10, 10}, {9, 9, 9}, "us", Better::lower, 0.9);
  const BenchRow below = compare("below", {10, 10, 10}, {8.9, 8.9, 8.9}, "us", Better::lower, 0.9);
  EXPECT_THAT(to_table({just}), HasSubstr(" 0.90  reached"));
  EXPECT_THAT(to_table({below}), HasSubstr(" 0.90  MISSED"));
}

}  // namespace
}  // namespace cairn::study
