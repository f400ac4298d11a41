#include "unlearn/capacity.h"

#include <gtest/gtest.h>

namespace cairn::unlearn {
namespace {

double simulated(int64_t shards, int64_t slices, int64_t budget, int64_t trials) {
  const std::vector<std::vector<Order>> orders(static_cast<size_t>(shards), cyclic_orders(slices, budget));
  const std::vector<std::vector<bool>> nothing(orders.size(), std::vector<bool>(static_cast<size_t>(slices), false));
  double sum = 0;
  for (int64_t i = 0; i < trials; ++i)
    sum += static_cast<double>(requests_until_dead(orders, nothing, base::Random(5).for_index(static_cast<uint64_t>(i))));
  return sum / static_cast<double>(trials);
}

TEST(Capacity, HasTheFormulaOfTheCouponCollector) {
  EXPECT_DOUBLE_EQ(harmonic(1), 1);
  EXPECT_DOUBLE_EQ(harmonic(4), 1 + 0.5 + 1.0 / 3 + 0.25);
  EXPECT_NEAR(expected_deletions(5, 4, 5), 45.7, 0.05);
  EXPECT_NEAR(expected_deletions(5, 4, 20), 72.0, 0.05);
  EXPECT_NEAR(expected_deletions(20, 50, 120), 5369, 0.5);
}

TEST(Capacity, SimulatedDeletionsComeNearTheFormula) {
  for (const int64_t budget : {1, 2, 4, 6})
    EXPECT_NEAR(simulated(3, 4, budget, 1500) / expected_deletions(3, 4, 3 * std::min<int64_t>(budget, 4)), 1, 0.04) << budget;
}

TEST(Capacity, AnOrderIsActiveUpToTheFirstHit) {
  EXPECT_EQ(active_length({2, 0, 1}, {false, false, false}), 3);
  EXPECT_EQ(active_length({2, 0, 1}, {true, false, false}), 1);
  EXPECT_EQ(active_length({2, 0, 1}, {true, false, true}), 0);
}

TEST(Capacity, WhatIsHitAlreadyCounts) {
  const std::vector<std::vector<Order>> orders{cyclic_orders(2, 1)};
  EXPECT_EQ(requests_until_dead(orders, {{true, false}}, base::Random(1)), 0);
  EXPECT_GE(requests_until_dead(orders, {{false, true}}, base::Random(1)), 1);
}

}  // namespace
}  // namespace cairn::unlearn
