// The way of rows to experts, played through for all ranks with labelled rows.
#include "parallel/experts/row_plan.h"

#include <algorithm>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::parallel {
namespace {

using Row = std::tuple<int64_t, int, int64_t>;  // expert, sender, number among the sender's rows of this expert

struct Dispatch {
  int ranks = 0;
  mesh::Ragged experts;
  std::vector<int64_t> announced;
  int64_t rows(int rank, size_t expert) const { return announced[static_cast<size_t>(rank) * (experts.owners.size() + 1) + 1 + expert]; }
};

Dispatch random_dispatch(std::mt19937& random, int ranks, int experts) {
  Dispatch d{.ranks = ranks, .experts = {}, .announced = {}};
  for (int e = 0; e < experts; ++e) {
    std::vector<int>& owners = d.experts.owners.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) owners.push_back(rank);
    std::shuffle(owners.begin(), owners.end(), random);
    owners.resize(random() % 2 == 0 ? 1 : 1 + random() % static_cast<unsigned>(ranks));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> counts;
    int64_t sum = 0;
    for (int e = 0; e < experts; ++e) {
      counts.push_back(random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 5));
      sum += counts.back();
    }
    d.announced.push_back(sum);
    d.announced.insert(d.announced.end(), counts.begin(), counts.end());
  }
  return d;
}

std::vector<Row> picked(const std::vector<Row>& rows, const std::vector<int64_t>& order) {
  if (order.empty()) return rows;
  std::vector<Row> result;
  for (const int64_t at : order) result.push_back(rows[static_cast<size_t>(at)]);
  return result;
}

TEST(RowPlan, BringsEveryRowToItsExpertInTheOrderOfTheSenders) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 5), experts = 1 + static_cast<int>(random() % 7);
    const Dispatch d = random_dispatch(random, ranks, experts);
    NodeOf nodes;
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / 2);
    std::vector<RowPlan> plans;
    std::vector<std::vector<Row>> leaving, arriving(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      plans.push_back(plan_rows(d.announced, ranks, rank, d.experts, nodes));
      std::vector<Row> own;
      for (int e = 0; e < experts; ++e)
        for (int64_t i = 0; i < d.rows(rank, static_cast<size_t>(e)); ++i) own.emplace_back(e, rank, i);
      leaving.push_back(picked(own, plans.back().pack));
    }
    for (int from = 0; from < ranks; ++from) {
      auto next = leaving[static_cast<size_t>(from)].begin();
      for (int to = 0; to < ranks; ++to) {
        const auto end = next + plans[static_cast<size_t>(from)].counts.at(from, to);
        arriving[static_cast<size_t>(to)].insert(arriving[static_cast<size_t>(to)].end(), next, end);
        next = end;
      }
      EXPECT_EQ(next, leaving[static_cast<size_t>(from)].end());
    }
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<Row> expected;
      std::vector<int64_t> local;
      for (int e = 0; e < experts; ++e) {
        const std::vector<int>& holders = d.experts.owners[static_cast<size_t>(e)];
        if (std::find(holders.begin(), holders.end(), rank) == holders.end()) continue;
        local.push_back(0);
        for (int from = 0; from < ranks; ++from)
          for (int64_t i = 0; i < d.rows(from, static_cast<size_t>(e)); ++i) {
            if (target_of_row(targets_of(d.experts, e, from, nodes), from, i) != rank) continue;
            expected.emplace_back(e, from, i);
            ++local.back();
          }
      }
      const RowPlan& plan = plans[static_cast<size_t>(rank)];
      EXPECT_EQ(picked(arriving[static_cast<size_t>(rank)], plan.by_expert), expected);
      EXPECT_EQ(plan.local, local);
      EXPECT_EQ(plan.counts, plans.front().counts);  // all ranks must agree on it
    }
  }
}

TEST(RowPlan, LeavesRowsInPlaceWhereTheyLieRight) {
  const mesh::Ragged experts = mesh::even_ragged(0, 2, 2);
  const RowPlan plan = plan_rows({5, 2, 3, 4, 1, 3}, 2, 1, experts, {0, 0});
  EXPECT_TRUE(plan.pack.empty());
  EXPECT_TRUE(plan.by_expert.empty());
  EXPECT_EQ(plan.counts.received_by(1), (std::vector<int64_t>{3, 3}));
}

std::string refusal(const std::vector<int64_t>& announced) {
  try {
    plan_rows(announced, 2, 0, mesh::even_ragged(0, 2, 2), {0, 0});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RowPlan, RefusesCountsThatDoNotAddUpAndNamesTheRank) {
  EXPECT_EQ(refusal({5, 2, 3, 4, 1, 3}), "");
  EXPECT_NE(refusal({5, 2, 3, 5, 1, 3}).find("rank 1 announces 4 rows and has 5"), std::string::npos) << refusal({5, 2, 3, 5, 1, 3});
  EXPECT_NE(refusal({5, 2, 3, 4, -1, 5}).find("rank 1 announces -1 rows for expert 0"), std::string::npos);
  const int64_t absurd = int64_t{1} << 50;
  EXPECT_NE(refusal({absurd, absurd, 0, 4, 1, 3}).find("rank 0 announces"), std::string::npos);
}

}  // namespace
}  // namespace cairn::parallel
