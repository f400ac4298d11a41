// Blocks given out to stages: the optimum, against trying every split.
#include "parallel/layout/stage_split.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::parallel {
namespace {

using Split = std::vector<int64_t>;

double dearest(const std::vector<double>& costs, const Split& split) {
  double most = 0;
  auto at = costs.begin();
  for (const int64_t count : split) {
    most = std::max(most, std::accumulate(at, at + count, 0.0));
    at += count;
  }
  return most;
}

double least_by_trying_all(const std::vector<double>& costs, size_t first, int stages) {
  if (stages == 1) return std::accumulate(costs.begin() + static_cast<int64_t>(first), costs.end(), 0.0);
  double best = std::numeric_limits<double>::infinity(), head = 0;
  for (size_t end = first + 1; end + static_cast<size_t>(stages) - 1 <= costs.size(); ++end) {
    head += costs[end - 1];
    best = std::min(best, std::max(head, least_by_trying_all(costs, end, stages - 1)));
  }
  return best;
}

std::string why_not_split(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "nothing was refused";
}

TEST(StageSplit, MinimisesTheSlowestStage) {
  EXPECT_EQ(balance_stages({1, 1, 1, 1}, 2), (Split{2, 2}));
  EXPECT_EQ(balance_stages({1, 1, 1, 1, 4}, 2), (Split{4, 1}));
  EXPECT_EQ(balance_stages({5, 1, 1, 1, 1, 1}, 3), (Split{1, 1, 4}));
  EXPECT_EQ(balance_stages({3}, 1), (Split{1}));
  EXPECT_EQ(balance_stages({0, 0, 0}, 3), (Split{1, 1, 1}));
  for (const size_t blocks : {1, 2, 5, 7, 10}) {
    std::vector<double> costs;
    for (size_t i = 0; i < blocks; ++i) costs.push_back(static_cast<double>((i * 37 + blocks * 11) % 13));
    for (int stages = 1; stages <= static_cast<int>(blocks); ++stages) {
      const Split split = balance_stages(costs, stages);
      EXPECT_NO_THROW(check_split(split, static_cast<int64_t>(blocks)));
      ASSERT_EQ(split.size(), static_cast<size_t>(stages));
      EXPECT_EQ(dearest(costs, split), least_by_trying_all(costs, 0, stages)) << blocks << " blocks, " << stages << " stages";
    }
  }
}

TEST(StageSplit, RefusesMoreStagesThanBlocks) {
  EXPECT_EQ(why_not_split([] { balance_stages({1, 1, 1, 1}, 6); }), "6 stages, model has 4 blocks: use at most 4 stages");
  EXPECT_EQ(why_not_split([] { balance_stages({1}, 0); }), "0 stages: must be at least 1");
  EXPECT_EQ(why_not_split([] { balance_stages({1, -1}, 1); }), "block 1 costs -1: must be a number, 0 or more");
}

TEST(StageSplit, RefusesAListThatDoesNotAddUp) {
  EXPECT_EQ(why_not_split([] { check_split({2, 3, 3, 2}, 10); }), "nothing was refused");
  EXPECT_EQ(why_not_split([] { check_split({2, 3}, 6); }), "split [2, 3] assigns 5 blocks, the model has 6");
  EXPECT_EQ(why_not_split([] { check_split({6, 0}, 6); }), "split [6, 0]: stage 1 has 0 blocks; each has at least 1, and the model has 6");
  EXPECT_EQ(why_not_split([] {
              check_split({INT64_MAX, 1}, 6);
            }),
            "split [9223372036854775807, 1]: stage 0 has 9223372036854775807 blocks; each has at least 1, and the model has 6");
  EXPECT_EQ(why_not_split([] { check_split({}, 6); }), "a split without stages: give the number of blocks of each stage");
}

}  // namespace
}  // namespace cairn::parallel
