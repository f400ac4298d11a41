#include "optim/schedule.h"

#include <gtest/gtest.h>

namespace cairn::optim {
namespace {

TEST(Schedule, RisesLinearlyThenFollowsItsShape) {
  const Schedule cosine{.shape = "cosine", .highest = 2, .warmup = 0.1, .final_share = 0.25};
  EXPECT_DOUBLE_EQ(cosine.learning_rate(0.05), 1);
  EXPECT_DOUBLE_EQ(cosine.learning_rate(0.1), 2);
  EXPECT_NEAR(cosine.learning_rate(0.55), 0.5 + 1.5 / 2, 1e-12);  // half way down
  EXPECT_NEAR(cosine.learning_rate(1), 0.5, 1e-12);
}

TEST(Schedule, LinearAndConstant) {
  EXPECT_DOUBLE_EQ((Schedule{.shape = "linear", .highest = 1, .warmup = 0, .final_share = 0}).learning_rate(0.75), 0.25);
  EXPECT_DOUBLE_EQ((Schedule{.shape = "constant", .highest = 1, .warmup = 0, .final_share = 0}).learning_rate(0.75), 1);
}

TEST(Schedule, AWarmUpLongerThanTheRunEndsOnTheWayUp) {
  EXPECT_DOUBLE_EQ((Schedule{.shape = "cosine", .highest = 3, .warmup = 2, .final_share = 0.1}).learning_rate(1), 1.5);
  EXPECT_DOUBLE_EQ((Schedule{.shape = "cosine", .highest = 3, .warmup = 1, .final_share = 0.1}).learning_rate(0.5), 1.5);
}

}  // namespace
}  // namespace cairn::optim
