#include "train/generations.h"

#include <gtest/gtest.h>

#include "harness/scratch_folder.h"

namespace cairn::train {
namespace {

using namespace std::chrono_literals;

TEST(RestartBudget, EndsARunThatDoesNotGetOn) {
  RestartBudget budget(3);
  EXPECT_EQ(budget.loss(7), 0s);
  EXPECT_EQ(budget.loss(7), 1s);
  EXPECT_EQ(budget.loss(5), 2s);  // from an earlier snapshot: no progress either
  EXPECT_FALSE(budget.loss(7));
}

TEST(RestartBudget, BeginsAnewWithEveryStepBeyondTheLossBefore) {
  RestartBudget budget(1);
  for (int64_t step = 1; step < 20; ++step) EXPECT_EQ(budget.loss(step), 0s);
  EXPECT_FALSE(budget.loss(19));
}

TEST(RestartBudget, OfZeroAllowsNone) { EXPECT_FALSE(RestartBudget(0).loss(3)); }

TEST(RestartBudget, PausesAtMostHalfAMinute) {
  RestartBudget budget(40);
  std::chrono::nanoseconds last{};
  for (int i = 0; i < 40; ++i) last = *budget.loss(0);
  EXPECT_EQ(last, 30s);
}

TEST(LastRecordedStep, IsThatOfTheLastWholeRow) {
  const harness::ScratchFolder scratch;
  EXPECT_EQ(last_recorded_step(scratch.path()), 0);
  std::string rows;
  for (int step = 1; step <= 9000; ++step)
    rows += "{\"step\":" + std::to_string(step) + ",\"loss\":1.5,\"text\":\"" + std::string(40, 'x') + "\"}\n";
  scratch.file("metrics.jsonl", rows + "{\"step\":9001,\"lo");
  EXPECT_EQ(last_recorded_step(scratch.path()), 9000);
}

}  // namespace
}  // namespace cairn::train
