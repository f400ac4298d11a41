#include "kernels/expert_routing.h"

#include <limits>

#include <gtest/gtest.h>

#include "kernels/aten.h"

namespace cairn::kernels {
namespace {

std::vector<int64_t> numbers(const at::Tensor& x) {
  const at::Tensor all = x.contiguous();
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

TEST(TopK, OfEqualScoresTakesTheLowerIndexFirst) {
  const at::Tensor scores = at::tensor({1.0, 3.0, 3.0, 0.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0}).to(at::kFloat).view({2, 5});
  EXPECT_EQ(numbers(top_k(scores, 2)), (std::vector<int64_t>{1, 2, 0, 1}));
  EXPECT_EQ(numbers(top_k(scores, 5)), (std::vector<int64_t>{1, 2, 4, 0, 3, 0, 1, 2, 3, 4}));
}

TEST(TopK, CountsNaNAsTheSmallest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor scores = at::tensor({nan, -5.0, nan, 4.0}).view({1, 4});
  EXPECT_EQ(numbers(top_k(scores, 2)), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(numbers(reference::top_k(scores, 2)), (std::vector<int64_t>{3, 1}));
}

TEST(TopK, EqualsASortOfEveryRow) {
  for (const int64_t n : {1, 7, 64, 129})
    for (const int64_t k : {int64_t{1}, std::min<int64_t>(n, 8), n}) {
      const at::Tensor scores = at::randint(0, 9, {611, n}).to(at::kFloat);  // many ties
      EXPECT_TRUE(at::equal(top_k(scores, k), reference::top_k(scores, k))) << n << " " << k;
    }
}

TEST(OrderByExpert, KeepsTheOrderOfTokensOfAnExpert) {
  const at::Tensor ids = at::tensor({2, 0, 0, 2, 2, 4}, at::kLong).view({3, 2});
  const ExpertOrder order = order_by_expert(ids, 5);
  EXPECT_EQ(numbers(order.slots), (std::vector<int64_t>{1, 2, 0, 3, 4, 5}));
  EXPECT_EQ(numbers(order.places), (std::vector<int64_t>{2, 0, 1, 3, 4, 5}));
  EXPECT_EQ(order.groups.host(), (std::vector<int64_t>{2, 0, 3, 0, 1}));
}

TEST(OrderByExpert, EqualsAStableSort) {
  for (const int64_t tokens : {0, 1, 31, 200}) {
    const at::Tensor ids = at::randint(0, 6, {tokens, 3}, at::kLong);
    const ExpertOrder found = order_by_expert(ids, 6), expected = reference::order_by_expert(ids, 6);
    EXPECT_TRUE(at::equal(found.slots, expected.slots)) << tokens;
    EXPECT_TRUE(at::equal(found.places, expected.places)) << tokens;
    EXPECT_EQ(found.groups.host(), expected.groups.host()) << tokens;
  }
}

// Against a loop in double, with an odd width, places that repeat, and rows that nobody wants.
TEST(GatherSum, AddsTheRowsAtThePlacesOfEachToken) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor rows = at::randn({9, 37}).to(type), weights = at::rand({5, 3}).to(type);
    const at::Tensor places = at::randint(0, 9, {5, 3}, at::kLong);
    const at::Tensor weighted = gather_sum(rows, places, weights), plain = gather_sum(rows, places);
    for (int64_t t = 0; t < 5; ++t)
      for (int64_t j = 0; j < 37; ++j) {
        double sum = 0, weighted_sum = 0;
        for (int64_t k = 0; k < 3; ++k) {
          const double value = rows[places[t][k].item<int64_t>()][j].item<double>();
          sum += value, weighted_sum += weights[t][k].item<double>() * value;
        }
        EXPECT_NEAR(plain[t][j].item<double>(), sum, 1e-5);
        EXPECT_NEAR(weighted[t][j].item<double>(), weighted_sum, 1e-5);
      }
  }
  EXPECT_EQ(gather_sum(at::zeros({0, 4}), at::zeros({0, 2}, at::kLong)).size(0), 0);
}

}  // namespace
}  // namespace cairn::kernels
