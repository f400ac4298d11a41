#include "study/value_estimators.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::study {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

// A game given as a function of which players are there; each player is one sample.
class BySet final : public Utility {
 public:
  explicit BySet(std::function<double(uint64_t)> of) : of_(std::move(of)) {}
  double value(std::span<const int64_t> samples) const override {
    uint64_t bits = 0;
    for (const int64_t one : samples) bits |= uint64_t{1} << one;
    return of_(bits);
  }
  double empty() const override { return of_(0); }

 private:
  std::function<double(uint64_t)> of_;
};

std::vector<std::vector<int64_t>> players(int64_t count) {
  std::vector<std::vector<int64_t>> all;
  for (int64_t i = 0; i < count; ++i) all.push_back({i});
  return all;
}

TEST(ExactValues, OfTheGloveGame) {
  // One left glove (player 0) and two right ones: a pair is worth 1.
  const BySet gloves([](uint64_t bits) { return (bits & 1) && (bits & 6) ? 1.0 : 0.0; });
  const PlayerValues game{.players = players(3), .utility = gloves};
  EXPECT_THAT(exact_values(subset_values(game, 0, 8), 3), Pointwise(DoubleNear(1e-12), {2.0 / 3, 1.0 / 6, 1.0 / 6}));
}

TEST(ExactValues, OfPlayersWithSeveralSamplesInParts) {
  const BySet size([](uint64_t bits) { return static_cast<double>(std::popcount(bits)); });
  const PlayerValues game{.players = {{0, 3, 4}, {1}, {2, 5}}, .utility = size};
  std::vector<double> all = subset_values(game, 0, 5);
  const std::vector<double> rest = subset_values(game, 5, 3);
  all.insert(all.end(), rest.begin(), rest.end());
  EXPECT_THAT(exact_values(all, 3), Pointwise(DoubleNear(1e-12), {3.0, 1.0, 2.0}));
}

TEST(PermutationRow, SumsUpToTheWhole) {
  const BySet square([](uint64_t bits) { return std::pow(std::popcount(bits), 2) + 0.5; });
  const PlayerValues game{.players = players(6), .utility = square, .seed = 3};
  for (int64_t t = 0; t < 5; ++t) {
    const std::vector<double> row = permutation_row(game, t);
    ASSERT_EQ(row.size(), 6 + kRowTail);
    EXPECT_DOUBLE_EQ(std::accumulate(row.begin(), row.begin() + 6, 0.0), 36);
    EXPECT_EQ(row[6], 6);     // trainings
    EXPECT_EQ(row[7], 6);     // players before it ended
    EXPECT_EQ(row[8], 36.5);  // the last score
  }
}

TEST(PermutationRow, EndsOnceScoresStayNearTheWhole) {
  const BySet first([](uint64_t bits) { return bits == 0 ? 0.0 : 1.0; });
  const PlayerValues game{.players = players(20), .utility = first, .seed = 1, .near = 0.01, .full_mean = 1, .patience = 4};
  const std::vector<double> row = permutation_row(game, 0);
  EXPECT_EQ(row[20], 5);  // the fifth near score is more than patience allows
  EXPECT_EQ(std::accumulate(row.begin(), row.begin() + 20, 0.0), 1);
  const PlayerValues whole{.players = players(20), .utility = first, .seed = 1};
  EXPECT_EQ(permutation_row(whole, 0)[20], 20);
}

TEST(OrderOfPlayers, IsAPermutationForEachIteration) {
  std::vector<size_t> order = order_of_players(7, 0, 50);
  EXPECT_NE(order, order_of_players(7, 1, 50));
  EXPECT_NE(order, order_of_players(8, 0, 50));
  EXPECT_EQ(order, order_of_players(7, 0, 50));
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i);
}

TEST(RunningValues, HasMeansAndStandardErrors) {
  RunningValues running(2);
  EXPECT_TRUE(std::isinf(running.change()));
  for (const double one : {1.0, 3.0}) running.add({one, 5, 2, 2, 0});
  EXPECT_THAT(running.values(), ElementsAre(2, 5));
  EXPECT_THAT(running.errors(), ElementsAre(1, 0));  // deviation 1 over sqrt(2 - 1)
  EXPECT_EQ(running.trainings(), 4);
  EXPECT_EQ(running.position(), 2);
}

TEST(RunningValues, ChangeLooksAtTheLastHundredRows) {
  RunningValues running(1);
  for (int i = 0; i < 99; ++i) running.add({1, 1, 1, 0});
  EXPECT_TRUE(std::isinf(running.change()));
  running.add({1, 1, 1, 0});
  EXPECT_EQ(running.change(), 0);
  running.add({102, 1, 1, 0});                // the mean goes from 1 to 2
  EXPECT_NEAR(running.change(), 0.5, 1e-12);  // |1 - 2| / 2
  for (int i = 0; i < 99; ++i) running.add({2, 1, 1, 0});
  EXPECT_EQ(running.change(), 0);  // the old rows no longer count
}

}  // namespace
}  // namespace cairn::study
