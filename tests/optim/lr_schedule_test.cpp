#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::optim {
namespace {

TEST(LrSchedule, RisesLinearlyThenFollowsItsShape) {
  const LrSchedule cosine{.shape = "cosine", .highest = 2, .warmup = 0.1, .min_lr_ratio = 0.25};
  EXPECT_DOUBLE_EQ(cosine.learning_rate(0.05), 1);
  EXPECT_DOUBLE_EQ(cosine.learning_rate(0.1), 2);
  EXPECT_NEAR(cosine.learning_rate(0.55), 0.5 + 1.5 / 2, 1e-12);  // half way down
  EXPECT_NEAR(cosine.learning_rate(1), 0.5, 1e-12);
}

TEST(LrSchedule, LinearAndConstant) {
  EXPECT_DOUBLE_EQ((LrSchedule{.shape = "linear", .highest = 1, .warmup = 0, .min_lr_ratio = 0}).learning_rate(0.75), 0.25);
  EXPECT_DOUBLE_EQ((LrSchedule{.shape = "constant", .highest = 1, .warmup = 0, .min_lr_ratio = 0}).learning_rate(0.75), 1);
}

TEST(LrSchedule, AWarmUpLongerThanTheRunEndsOnTheWayUp) {
  EXPECT_DOUBLE_EQ((LrSchedule{.shape = "cosine", .highest = 3, .warmup = 2, .min_lr_ratio = 0.1}).learning_rate(1), 1.5);
  EXPECT_DOUBLE_EQ((LrSchedule{.shape = "cosine", .highest = 3, .warmup = 1, .min_lr_ratio = 0.1}).learning_rate(0.5), 1.5);
}

// Warm-up over a tenth, decay over the last fifth from 2 to a quarter of it.
TEST(LrSchedule, WarmUpStableDecayStaysHighUntilItsLastPart) {
  LrSchedule wsd{.shape = "wsd", .highest = 2, .warmup = 0.1, .min_lr_ratio = 0.25, .decay_share = 0.2, .decay_shape = "linear"};
  EXPECT_DOUBLE_EQ(wsd.learning_rate(0.05), 1);
  EXPECT_DOUBLE_EQ(wsd.learning_rate(0.1), 2);
  EXPECT_DOUBLE_EQ(wsd.learning_rate(0.8), 2);
  EXPECT_NEAR(wsd.learning_rate(0.85), 0.5 + 1.5 * 0.75, 1e-12);
  EXPECT_NEAR(wsd.learning_rate(0.9), 0.5 + 1.5 * 0.5, 1e-12);
  EXPECT_NEAR(wsd.learning_rate(1), 0.5, 1e-12);
  wsd.decay_shape = "1-sqrt";
  EXPECT_DOUBLE_EQ(wsd.learning_rate(0.8), 2);
  EXPECT_NEAR(wsd.learning_rate(0.85), 0.5 + 1.5 * 0.5, 1e-12);  // 1 - sqrt(1/4)
  EXPECT_NEAR(wsd.learning_rate(1), 0.5, 1e-12);
}

TEST(LrSchedule, WarmUpStableDecayAtItsBorders) {
  const auto at_end = [](double warmup, double decay, double progress) {
    return (LrSchedule{.shape = "wsd", .highest = 1, .warmup = warmup, .min_lr_ratio = 0, .decay_share = decay, .decay_shape = "linear"})
        .learning_rate(progress);
  };
  EXPECT_DOUBLE_EQ(at_end(0, 0, 1), 1);  // no decay at all
  EXPECT_DOUBLE_EQ(at_end(0, 1, 0), 1);  // decay from the start on
  EXPECT_DOUBLE_EQ(at_end(0, 1, 0.25), 0.75);
  EXPECT_DOUBLE_EQ(at_end(0.5, 0.9, 0.75), 0.5);  // the warm-up ends after the decay would begin: what is left is decay
  EXPECT_DOUBLE_EQ(at_end(2, 0.2, 1), 0.5);       // a warm-up longer than the run
  EXPECT_DOUBLE_EQ(at_end(0, 0.2, 1.5), 0);       // past the end
}

TEST(LrSchedule, AnUnknownShapeIsRefusedAndTheNearestNamed) {
  const auto message = [](LrSchedule schedule) -> std::string {
    try {
      schedule.learning_rate(0.5);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message({.shape = "cosin"}), "unknown schedule \"cosin\": did you mean \"cosine\"?");
  EXPECT_EQ(message({.shape = "wsd", .decay_shape = "liner"}), "unknown decay shape \"liner\": did you mean \"linear\"?");
}

}  // namespace
}  // namespace cairn::optim
