#include "comm/net/path_planner.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "base/random.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;

// Links 0 to n-1; every flow may take any one of them.
struct Spines {
  Spines(int count, PathPlanner::Options options = {}) : planner(options) {
    for (int i = 0; i < count; ++i) all.push_back({planner.add_link(1)});
  }
  int add(double bytes, int channels = 1) { return planner.add_flow(bytes, all, channels); }
  PathPlanner planner;
  std::vector<PathPlanner::Path> all;
};

TEST(PathPlanner, EqualFlowsGetALinkEach) {
  for (const int count : {1, 2, 3, 7, 8, 16}) {
    Spines spines(count);
    for (int i = 0; i < count; ++i) spines.add(10);
    EXPECT_EQ(spines.planner.plan(0s), count);
    for (int link = 0; link < count; ++link) EXPECT_EQ(spines.planner.load(link), 10);
  }
}

TEST(PathPlanner, TheBusiestLinkIsWithinAThirdOfTheBestThatCanBe) {  // greedy, heaviest first: 4/3 - 1/(3n)
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const base::Random random(seed);
    Spines spines(4);
    double sum = 0, most = 0;
    for (uint64_t i = 0; i < 13; ++i) {
      const double bytes = 1 + static_cast<double>(random.below(i, 100));
      spines.add(bytes);
      sum += bytes;
      most = std::max(most, bytes);
    }
    spines.planner.plan(0s);
    EXPECT_LE(spines.planner.highest_utilisation(), std::max(sum / 4, most) * (4.0 / 3));
    double booked = 0;
    for (int link = 0; link < 4; ++link) booked += spines.planner.load(link);
    EXPECT_NEAR(booked, sum, 1e-9);
  }
}

TEST(PathPlanner, ChannelsOfAFlowSpreadAndLoadFollowsCapacity) {
  Spines spines(4);
  const int flow = spines.add(8, 4);
  spines.planner.plan(0s);
  std::vector<int> paths = spines.planner.paths_of(flow);
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(paths, (std::vector<int>{0, 1, 2, 3}));

  PathPlanner unequal;
  const int fast = unequal.add_link(3), slow = unequal.add_link(1);
  unequal.add_flow(8, {{fast}, {slow}}, 8);
  unequal.plan(0s);
  EXPECT_EQ(unequal.load(fast), 6);
  EXPECT_EQ(unequal.load(slow), 2);
}

TEST(PathPlanner, ALostLinkIsLeftAtOnceAndNothingElseMoves) {
  Spines spines(4, {.interval = 30s});
  std::vector<int> flows;
  for (int i = 0; i < 8; ++i) flows.push_back(spines.add(1));
  spines.planner.plan(100s);
  std::vector<std::vector<int>> before;
  for (const int flow : flows) before.push_back(spines.planner.paths_of(flow));
  spines.planner.set_capacity(2, 0);
  EXPECT_EQ(spines.planner.plan(101s), 2);
  for (size_t i = 0; i < flows.size(); ++i) {
    const std::vector<int>& now = spines.planner.paths_of(flows[i]);
    EXPECT_NE(now[0], 2);
    if (before[i][0] != 2) {
      EXPECT_EQ(now, before[i]);
    }
  }
  EXPECT_EQ(spines.planner.load(2), 0);
  for (int link = 0; link < 4; ++link) spines.planner.set_capacity(link, 0);
  spines.planner.plan(102s);
  EXPECT_EQ(spines.planner.paths_of(flows[0])[0], -1);
  spines.planner.set_capacity(1, 1);
  EXPECT_EQ(spines.planner.plan(103s), 8);
  EXPECT_EQ(spines.planner.load(1), 8);
}

TEST(PathPlanner, WorkingFlowsMoveOnlyForAFifthAndOnlyEveryHalfMinute) {
  Spines spines(2, {.hysteresis = 0.2, .interval = 30s});
  std::vector<int> flows;
  for (int i = 0; i < 4; ++i) flows.push_back(spines.add(100));
  spines.planner.plan(0s);
  spines.planner.set_bytes(flows[0], 115);  // 115 + 100 against 200: nothing to gain
  EXPECT_EQ(spines.planner.plan(40s), 0);
  spines.planner.remove_flow(flows[1]);
  spines.planner.remove_flow(flows[3]);  // 115 + 100 share a link now, or nothing does
  const bool together = spines.planner.paths_of(flows[0]) == spines.planner.paths_of(flows[2]);
  EXPECT_EQ(spines.planner.plan(80s) > 0, together);
  EXPECT_EQ(spines.planner.highest_utilisation(), 115);
  const int late = spines.add(1000);
  EXPECT_EQ(spines.planner.plan(81s), 1);  // a new flow is placed at once; nothing else moves before 110 s
  const double crowded = spines.planner.highest_utilisation();
  EXPECT_EQ(spines.planner.plan(109s), 0);
  EXPECT_EQ(spines.planner.highest_utilisation(), crowded);
  EXPECT_GE(spines.planner.paths_of(late)[0], 0);
}

TEST(PathPlanner, LoadsOfAllJobsAreKeptAndReleased) {
  Spines spines(4);
  std::vector<int> first, second;
  for (int i = 0; i < 4; ++i) first.push_back(spines.add(3));
  spines.planner.plan(0s);
  for (int i = 0; i < 4; ++i) second.push_back(spines.add(5));
  spines.planner.plan(1s);
  for (int link = 0; link < 4; ++link) EXPECT_EQ(spines.planner.load(link), 8);
  for (const int flow : first) spines.planner.remove_flow(flow);
  for (int link = 0; link < 4; ++link) EXPECT_EQ(spines.planner.load(link), 5);
}

TEST(RateSplit, SharesFollowTheRatesAndSumToOne) {
  RateSplit split(3);
  EXPECT_DOUBLE_EQ(split.share(0), 1.0 / 3);
  for (int i = 0; i < 50; ++i) {
    split.measured(0, 60e6);
    split.measured(1, 30e6);
    split.measured(2, 10e6);
  }
  EXPECT_NEAR(split.share(0), 0.6, 0.06);
  EXPECT_NEAR(split.share(1), 0.3, 0.06);
  EXPECT_NEAR(split.share(2), 0.1, 0.025);
  EXPECT_NEAR(split.share(0) + split.share(1) + split.share(2), 1, 1e-12);
}

TEST(RateSplit, NoiseBelowAFifthMovesNothingAndTheSlowestKeepsATwentieth) {
  RateSplit split(2);
  for (int i = 0; i < 100; ++i) {
    split.measured(0, i % 2 ? 95e6 : 105e6);
    split.measured(1, i % 2 ? 104e6 : 96e6);
    ASSERT_EQ(split.share(0), 0.5);
  }
  for (int i = 0; i < 100; ++i) split.measured(1, 1);
  EXPECT_NEAR(split.share(1), 0.05 / 1.05, 0.01);
}

TEST(RateSplit, ALostChannelGetsNothingAndTheOthersAllOfIt) {
  RateSplit split(3);
  for (int i = 0; i < 20; ++i) {
    split.measured(0, 10e6);
    split.measured(1, 20e6);
    split.measured(2, 30e6);
  }
  split.lose(2);
  split.measured(2, 1e9);
  EXPECT_EQ(split.share(2), 0);
  EXPECT_NEAR(split.share(1), 2.0 / 3, 0.01);
  split.lose(0);
  EXPECT_DOUBLE_EQ(split.share(1), 1);
}

}  // namespace
}  // namespace cairn::comm
