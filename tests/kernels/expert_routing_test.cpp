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

}  // namespace
}  // namespace cairn::kernels
