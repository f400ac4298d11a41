#include "train/report/rank_times.h"

#include <gtest/gtest.h>

#include "base/metrics.h"
#include "harness/scratch_folder.h"
#include "small_decoder.h"
#include "train_on.h"

namespace cairn::train {
namespace {

TEST(RankTimes, NamesTheSlowestRankOnceItIsATenthBehindTheMedianOfTheOthers) {
  for (const double slow : {1.09, 1.11}) {
    RankTimes times;
    for (size_t step = 0; step < RankTimes::kWindow; ++step) {
      EXPECT_FALSE(times.slowest());
      times.add(std::vector<double>{1.0, 0.5, 2 * (slow - 0.5), 1.0, 1.0});
      times.add(std::vector<double>{1.0, 0.5, 1.0, 1.0, 1.0});  // the mean counts, not a single step
      if (step + 1 == RankTimes::kWindow / 2) break;
    }
    ASSERT_EQ(times.slowest().has_value(), slow > 1.1);
    if (!times.slowest()) continue;
    EXPECT_EQ(times.slowest()->rank, 2);
    EXPECT_NEAR(times.slowest()->behind, 0.11, 1e-12);
  }
}

TEST(RankTimes, ForgetsASlowRankThatHasCaughtUp) {
  RankTimes times;
  for (size_t step = 0; step < RankTimes::kWindow; ++step) times.add(std::vector<double>{1.0, 2.0});
  EXPECT_EQ(times.slowest()->rank, 1);
  for (size_t step = 0; step < RankTimes::kWindow; ++step) times.add(std::vector<double>{1.0, 1.0});
  EXPECT_FALSE(times.slowest());
}

TEST(RankTimes, OneRankIsNeverBehind) {
  RankTimes times;
  for (size_t step = 0; step < RankTimes::kWindow; ++step) times.add(std::vector<double>{1.0});
  EXPECT_FALSE(times.slowest());
}

TEST(StepMetrics, HaveWhatPeopleExpectOnEveryStep) {
  const harness::ScratchFolder scratch;
  for (const int ranks : {1, 2}) {
    const std::filesystem::path out = scratch / std::to_string(ranks);
    train_on(ranks, small_decoder("llama", {"train.steps=4"}), out);
    double before = 0;
    for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) {
      for (const char* name : {"mfu", "lr", "grad_norm", "step_seconds"}) EXPECT_GT(row.number(name), 0) << name;
      for (const char* name : {"data_wait_seconds", "comm_wait_seconds"}) EXPECT_GE(row.number(name), 0) << name;
      EXPECT_LT(row.number("mfu"), 1);
      EXPECT_EQ(row.has("rank_seconds"), ranks > 1);
      EXPECT_GE(row.number("seconds") - before, row.number("step_seconds") * (1 - 1e-9));
      EXPECT_LE(row.number("data_wait_seconds") + row.number("comm_wait_seconds"), row.number("step_seconds") * 1.01);
      before = row.number("seconds");
    }
  }
}

}  // namespace
}  // namespace cairn::train
