#include "elastic/diagnosis/straggler.h"

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_ranks.h"

namespace cairn::elastic {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// 60 steps. A rank computes for own(rank, step) ms and loads data for loading(rank) ms of it; then it waits for the slowest.
FakeRanks steps(
    int n, const std::function<double(int, int)>& own, const std::function<double(int)>& loading = [](int) { return 1.0; }) {
  FakeRanks fake(n);
  for (int rank = 0; rank < n; ++rank) fake.log(rank).steps.clear();
  const auto ms = [](double x) { return std::chrono::nanoseconds(static_cast<int64_t>(x * 1e6)); };
  for (int step = 1; step <= 60; ++step) {
    double slowest = 0;
    for (int rank = 0; rank < n; ++rank) slowest = std::max(slowest, own(rank, step));
    for (int rank = 0; rank < n; ++rank) {
      const auto begun = std::chrono::seconds(step);
      fake.log(rank).steps.push_back({step, begun, begun + ms(slowest + 1), ms(slowest + 1 - own(rank, step)), ms(loading(rank))});
    }
  }
  return fake;
}

double own_time(int rank, int step) { return 100 + 2 * std::sin(rank * 5.1 + step * 1.7); }

TEST(Straggler, EqualRanksHaveNone) { EXPECT_TRUE(find_stragglers(steps(4, own_time).views, {}).empty()); }

TEST(Straggler, TheRankThatNeverWaitsIsNamed) {
  const auto found = find_stragglers(steps(4, [](int r, int s) { return own_time(r, s) * (r == 2 ? 1.1 : 1); }).views, {});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::straggler);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_THAT(found[0].evidence, HasSubstr("first in 100 % of 20 steps"));
}

TEST(Straggler, OfTwoRanksToo) {
  const auto found = find_stragglers(steps(2, [](int r, int s) { return own_time(r, s) * (r == 1 ? 1.1 : 1); }).views, {});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
}

TEST(Straggler, AllRanksSlowerIsNone) {
  EXPECT_TRUE(find_stragglers(steps(4, [](int r, int s) { return own_time(r, s) * (s > 30 ? 1.5 : 1); }).views, {}).empty());
}

TEST(Straggler, LessThanTheThresholdIsNone) {
  EXPECT_TRUE(find_stragglers(steps(4, [](int r, int s) { return own_time(r, s) + (r == 2 ? 3 : 0); }).views, {}).empty());
}

TEST(Straggler, AStageWithMoreWorkIsNotCompared) {
  FakeRanks fake = steps(4, [](int r, int s) { return own_time(r, s) * (r >= 2 ? 1.5 : 1); });
  for (int rank = 0; rank < 4; ++rank) fake.log(rank).role = static_cast<uint64_t>(rank / 2);
  EXPECT_TRUE(find_stragglers(fake.views, {}).empty());
}

TEST(Straggler, AnotherRankInEachStepIsNone) {
  EXPECT_TRUE(find_stragglers(steps(4, [](int r, int s) { return own_time(r, s) * (s % 4 == r ? 1.3 : 1); }).views, {}).empty());
}

TEST(Straggler, ALoaderThatExplainsItIsLateData) {
  const auto found =
      find_stragglers(steps(
                          4, [](int r, int s) { return own_time(r, s) + (r == 3 ? 20 : 0); }, [](int r) { return r == 3 ? 21.0 : 1.0; })
                          .views,
                      {});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::late_data);
  EXPECT_EQ(found[0].rank, 3);
}

TEST(Straggler, TheFirstStepsDoNotCount) {
  FakeRanks fake = steps(4, [](int r, int s) { return own_time(r, s) * (r == 2 ? 1.3 : 1); });
  for (int rank = 0; rank < 4; ++rank) fake.log(rank).steps.resize(30);  // 10 after the warm-up
  EXPECT_TRUE(find_stragglers(fake.views, {}).empty());
}

TEST(Straggler, ARankWithoutRecordsIsLeftOut) {
  FakeRanks fake = steps(4, [](int r, int s) { return own_time(r, s) * (r == 2 ? 1.1 : 1); });
  fake.views[0].log.reset();
  EXPECT_EQ(find_stragglers(fake.views, {}).size(), 1u);
}

}  // namespace
}  // namespace cairn::elastic
