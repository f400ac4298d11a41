#include "unlearn/orders.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "small_store.h"
#include "unlearn/assignment.h"

namespace cairn::unlearn {
namespace {

using testing::HasSubstr;

double best_by_trying(const std::vector<std::vector<double>>& scores) {
  std::vector<size_t> columns(scores.size());
  std::iota(columns.begin(), columns.end(), size_t{0});
  double best = -1e300;
  do {
    double sum = 0;
    for (size_t row = 0; row < scores.size(); ++row) sum += scores[row][columns[row]];
    best = std::max(best, sum);
  } while (std::next_permutation(columns.begin(), columns.end()));
  return best;
}

TEST(BestAssignment, IsThatOfTryingAll) {
  for (uint64_t trial = 0; trial < 50; ++trial) {
    const base::Random random = base::Random(trial).for_purpose("assignment");
    const size_t n = 1 + trial % 6;
    std::vector<std::vector<double>> scores(n, std::vector<double>(n));
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) scores[i][j] = 20 * random.uniform(i * n + j) - 10;
    const std::vector<int64_t> found = best_assignment(scores);
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += scores[i][static_cast<size_t>(found[i])];
    EXPECT_NEAR(sum, best_by_trying(scores), 1e-9) << "trial " << trial;
  }
}

TEST(BestAssignment, TakesNoForbiddenEntry) {
  const double no = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(best_assignment({{no, 1, no}, {5, 100, no}, {1, 1, 1}}), (std::vector<int64_t>{1, 0, 2}));
}

TEST(CyclicOrders, PutEverySliceFirstOnceThenRotateTails) {
  EXPECT_EQ(cyclic_orders(3, 3), (std::vector<Order>{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}}));
  const std::vector<Order> five = cyclic_orders(3, 5);
  EXPECT_EQ(five[3], (Order{0, 2, 1}));
  EXPECT_EQ(five[4], (Order{1, 0, 2}));
  for (const int64_t budget : {1, 4, 9, 24}) {
    const std::vector<Order> orders = cyclic_orders(4, budget);
    EXPECT_EQ(static_cast<int64_t>(std::set<Order>(orders.begin(), orders.end()).size()), budget);
  }
}

TEST(RandomOrders, AreDifferentOrdersOfAllSlices) {
  const std::vector<Order> orders = random_orders(4, 20, base::Random(3));
  EXPECT_EQ(std::set<Order>(orders.begin(), orders.end()).size(), 20u);
  for (Order order : orders) {
    std::ranges::sort(order);
    EXPECT_EQ(order, (Order{0, 1, 2, 3}));
  }
}

TEST(MatchingOrders, PutLikelyDeletionsLate) {
  const std::vector<Order> orders = matching_orders({0.7, 0.1, 0.1, 0.1}, 100, 4);
  ASSERT_EQ(orders.size(), 4u);
  int64_t late = 0;
  for (const Order& order : orders) late += order.back() == 0 ? 1 : 0;
  EXPECT_GE(late, 1);
  EXPECT_NE(orders.front().front(), 0);  // the best one does not begin with it
  EXPECT_EQ(orders.back().front(), 0);
}

TEST(OrdersOfShards, RefuseWhatCannotBe) {
  const auto refused = [](const UnlearnOptions& options) { return refusal_by([&] { orders_of_shards(options); }); };
  EXPECT_THAT(refused({.slices = 7, .orders = OrderKind::all}), HasSubstr("unlearning.orders = all: 7 slices have more than 720 orders"));
  EXPECT_THAT(refused({.slices = 3, .budget = 7}), HasSubstr("unlearning.budget = 7: 3 slices have 6 orders"));
  EXPECT_THAT(refused({.orders = OrderKind::matching}), HasSubstr("Set unlearning.delete_probs"));
  EXPECT_THAT(refused({.delete_probs = "x"}), HasSubstr("only unlearning.orders = matching reads it"));
  EXPECT_THAT(refused({.slices = 3, .budget = 4, .orders = OrderKind::matching, .delete_probs = "x"}), HasSubstr("Set at most 3"));
  const harness::ScratchFolder scratch;
  const auto with = [&](const std::string& text) {
    return refused(
        {.shards = 2, .slices = 2, .budget = 2, .orders = OrderKind::matching, .delete_probs = scratch.file("p", text).string()});
  };
  EXPECT_EQ(with("0.4 0.2"), "accepted");
  EXPECT_EQ(with("0.4 0.2 0.1 0.1"), "accepted");
  EXPECT_THAT(with("0.4 often"), HasSubstr("\"often\" is no probability"));
  EXPECT_THAT(with("0.1 0.2 0.3"), HasSubstr("it has 3 numbers. Give 2"));
  EXPECT_THAT(with("0.9 0.2"), HasSubstr("sum to 1.1"));
}

}  // namespace
}  // namespace cairn::unlearn
