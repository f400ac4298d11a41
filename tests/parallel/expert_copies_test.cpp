#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "parallel/expert_copies/calibration.h"
#include "parallel/expert_copies/copy_plan.h"
#include "parallel/expert_copies/load_window.h"
#include "parallel/expert_copies/reshard.h"
#include "parallel/expert_copies/token_routes.h"

namespace cairn::parallel {
namespace {

using ::testing::ElementsAre;

const NodeOf kTwoNodesOfFour{0, 0, 0, 0, 1, 1, 1, 1};

mesh::Ragged homes_at(std::vector<int> ranks) {
  mesh::Ragged table;
  for (const int rank : ranks) table.owners.push_back({rank});
  return table;
}

// 16 experts, two per rank; 60 % of all tokens go to experts 0 and 1, whose home is rank 0.
std::vector<int64_t> skewed_counts(int ranks) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank)
    for (int expert = 0; expert < 16; ++expert) counts.push_back(expert < 2 ? 420 : 40);
  return counts;
}

std::vector<int64_t> load_of(const std::vector<int64_t>& counts, size_t experts) {
  std::vector<int64_t> load(experts, 0);
  for (size_t i = 0; i < counts.size(); ++i) load[i % experts] += counts[i];
  return load;
}

TEST(LoadWindow, SumsTheLastStepsAndStartsUniform) {
  LoadWindow window(2, 3, 2);
  EXPECT_THAT(window.load(1), ElementsAre(1, 1, 1));
  window.add({1, 2, 3, 4, 5, 6});
  EXPECT_THAT(window.load(0), ElementsAre(1, 2, 3));
  window.add({10, 0, 0, 0, 0, 10});
  EXPECT_THAT(window.load(1), ElementsAre(4, 5, 16));
  window.add({0, 0, 7, 0, 0, 0});
  EXPECT_THAT(window.load(0), ElementsAre(10, 0, 7));
  EXPECT_THAT(window.load(1), ElementsAre(0, 0, 10));
  EXPECT_EQ(window.history().size(), 2u);
}

TEST(CopyPlan, TheOverlapDegreeIsWhatFitsIntoTheTime) {
  EXPECT_EQ(overlap_degree(0.010, 1e9, 3'000'000), 3);
  EXPECT_EQ(overlap_degree(0.0, 1e9, 1), 0);
}

TEST(CopyPlan, CopiesTheMostLoadedExpertsToAllRanksWhereMemoryAllows) {
  const mesh::Ragged plan = plan_copies(homes_at({0, 1, 2, 0}), std::vector<int64_t>{5, 9, 5, 1}, {0, 0, 1}, {.overlap = 2, .slots = 2});
  EXPECT_THAT(plan.owners[0], ElementsAre(0, 2, 1));  // the tie of experts 0 and 2 goes to 0; the other node comes first
  EXPECT_THAT(plan.owners[1], ElementsAre(1, 2, 0));
  EXPECT_THAT(plan.owners[2], ElementsAre(2));
  EXPECT_THAT(plan.owners[3], ElementsAre(0));
}

TEST(CopyPlan, GivesCopiesInProportionToTheLoadWhereMemoryIsShort) {
  // 4 ranks with one slot each; the top three have shares 4 * (50, 30, 20) / 100 = 2, 1.2, 0.8: 2, 1, 1 by largest remainder.
  const mesh::Ragged plan =
      plan_copies(homes_at({0, 1, 2, 3}), std::vector<int64_t>{50, 30, 20, 5}, {0, 0, 1, 1}, {.overlap = 3, .slots = 1});
  EXPECT_EQ(plan.owners[0].size(), 3u);
  EXPECT_EQ(plan.owners[1].size(), 2u);
  EXPECT_EQ(plan.owners[2].size(), 2u);
  EXPECT_EQ(plan.owners[3].size(), 1u);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(copies_at(plan, rank), 1) << rank;
}

TEST(CopyPlan, NeverExceedsSlotsNorCopiesTwice) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const base::Random random = base::Random(seed).for_name("plan");
    const int ranks = 1 + static_cast<int>(random.below(0, 7)), experts = 1 + static_cast<int>(random.below(1, 20));
    NodeOf nodes;
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / 2);
    mesh::Ragged owners;
    std::vector<int64_t> load;
    for (int expert = 0; expert < experts; ++expert) {
      owners.owners.push_back({static_cast<int>(random.below(10 + static_cast<uint64_t>(expert), static_cast<uint64_t>(ranks)))});
      load.push_back(static_cast<int64_t>(random.below(100 + static_cast<uint64_t>(expert), 50)));
    }
    const CopyBudget budget{static_cast<int>(random.below(2, 25)), static_cast<int>(random.below(3, 6))};
    const mesh::Ragged plan = plan_copies(owners, load, nodes, budget);
    EXPECT_NO_THROW(mesh::check(plan, ranks, experts)) << seed;
    EXPECT_EQ(mesh::homes(plan), owners);
    std::set<int> copied;
    for (int expert = 0; expert < experts; ++expert)
      if (plan.owners[static_cast<size_t>(expert)].size() > 1) copied.insert(expert);
    EXPECT_LE(static_cast<int>(copied.size()), std::min(budget.overlap, experts));
    for (int rank = 0; rank < ranks; ++rank) EXPECT_LE(copies_at(plan, rank), budget.slots);
    EXPECT_EQ(plan_hash(plan), plan_hash(plan_copies(owners, load, nodes, budget)));
  }
}

TEST(CopyPlan, TheHashTellsTablesApart) {
  const mesh::Ragged one = homes_at({0, 1}), other = homes_at({1, 0});
  EXPECT_NE(plan_hash(one), plan_hash(other));
  EXPECT_NE(plan_hash(mesh::with_owner(one, 0, 1)), plan_hash(mesh::with_owner(one, 1, 0)));
  EXPECT_NE(plan_hash(std::vector{one, other}), plan_hash(std::vector{other, one}));
}

TEST(CopyPlan, EvensOutTheLoadAndKeepsTokensInsideTheirNode) {
  const mesh::Ragged owners = mesh::even_ragged(0, 16, 8);
  const std::vector<int64_t> counts = skewed_counts(8);
  const mesh::Ragged plan = plan_copies(owners, load_of(counts, 16), kTwoNodesOfFour, {.overlap = 4, .slots = 2});
  const auto max_over_mean = [](const std::vector<int64_t>& rows) {
    const int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    return static_cast<double>(*std::max_element(rows.begin(), rows.end())) * static_cast<double>(rows.size()) / static_cast<double>(sum);
  };
  const auto between_nodes = [](const comm::CountMatrix& matrix) {
    int64_t rows = 0;
    for (int from = 0; from < 8; ++from)
      for (int to = 0; to < 8; ++to) rows += from / 4 != to / 4 ? matrix.at(from, to) : 0;
    return static_cast<double>(rows);
  };
  const TokenRoutes plain(owners, counts, kTwoNodesOfFour), balanced(plan, counts, kTwoNodesOfFour);
  EXPECT_GT(max_over_mean(plain.received()), 2.4);
  EXPECT_LE(max_over_mean(balanced.received()), 1.3);
  EXPECT_LE(between_nodes(balanced.matrix()), 0.6 * between_nodes(plain.matrix()));
}

TEST(CopyPlan, OfSixtyFourExpertsInTwentyFourLayersTakesLessThanAMillisecond) {
  const base::Random random(5);
  NodeOf nodes;
  for (int rank = 0; rank < 16; ++rank) nodes.push_back(rank / 8);
  LoadWindow window(24, 64);
  std::vector<int64_t> counts(24 * 64);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<int64_t>(random.below(i, 10000));
  window.add(counts);
  const mesh::Ragged owners = mesh::even_ragged(0, 64, 16);
  double best = 1;
  for (int trial = 0; trial < 20; ++trial) {
    const auto begun = std::chrono::steady_clock::now();
    std::vector<mesh::Ragged> layers;
    for (int layer = 0; layer < 24; ++layer) layers.push_back(plan_copies(owners, window.load(layer), nodes, {.overlap = 8, .slots = 2}));
    const uint64_t hash = plan_hash(layers);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    EXPECT_NE(hash, 0u);
  }
  EXPECT_LT(best, 1e-3);
}

TEST(TokenRoutes, FollowTheRuleTokenByToken) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const base::Random random = base::Random(seed).for_name("routes");
    const int ranks = 6, experts = 5;
    const NodeOf nodes{0, 0, 0, 1, 1, 1};
    mesh::Ragged placement;
    std::vector<int64_t> counts;
    for (int expert = 0; expert < experts; ++expert) {
      auto& owners = placement.owners.emplace_back();
      for (int rank = 0; rank < ranks; ++rank)
        if (random.below(static_cast<uint64_t>(expert * ranks + rank), 3) == 0) owners.push_back(rank);
      if (owners.empty()) owners.push_back(static_cast<int>(random.below(200 + static_cast<uint64_t>(expert), ranks)));
      std::reverse(owners.begin(), owners.end());  // the home need not be the lowest
    }
    for (int i = 0; i < ranks * experts; ++i) counts.push_back(static_cast<int64_t>(random.below(300 + static_cast<uint64_t>(i), 11)));
    const TokenRoutes routes(placement, counts, nodes);
    comm::CountMatrix expected{ranks, std::vector<int64_t>(ranks * ranks, 0)};
    for (int source = 0; source < ranks; ++source)
      for (int expert = 0; expert < experts; ++expert) {
        std::vector<int64_t> at(ranks, 0);
        const std::vector<int>& owners = placement.owners[static_cast<size_t>(expert)];
        for (int64_t row = 0; row < counts[static_cast<size_t>(source * experts + expert)]; ++row) {
          std::vector<int> local, near, all;
          for (int rank = 0; rank < ranks; ++rank) {
            if (std::find(owners.begin(), owners.end(), rank) == owners.end()) continue;
            all.push_back(rank);
            if (nodes[static_cast<size_t>(rank)] == nodes[static_cast<size_t>(source)]) near.push_back(rank);
            if (rank == source) local.push_back(rank);
          }
          const std::vector<int>& from = !local.empty() ? local : !near.empty() ? near : all;
          at[static_cast<size_t>(from[static_cast<size_t>(row + source) % from.size()])] += 1;
        }
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(routes.rows(source, rank, expert), at[static_cast<size_t>(rank)]);
          expected.counts[static_cast<size_t>(source * ranks + rank)] += at[static_cast<size_t>(rank)];
        }
      }
    EXPECT_EQ(routes.matrix(), expected);
  }
}

TEST(Calibration, AddsCopiesOnlyIfTheySaveMoreThanTheyCost) {
  using std::chrono::microseconds;
  const mesh::Ragged owners = mesh::even_ragged(0, 16, 8);
  const std::vector<int64_t> counts = skewed_counts(8);
  LayerCosts costs{.compute_row = microseconds(10), .move_inside = microseconds(1), .move_between = microseconds(5)};
  const CopyBudget budget{.overlap = 4, .slots = 2};
  // Rank 0 computes 6,720 of 11,200 rows at first.
  costs.copy_expert = microseconds(100);
  const mesh::Ragged larger = calibrate(owners, counts, kTwoNodesOfFour, budget, costs);
  EXPECT_GT(copies_in(larger), 0);
  EXPECT_LT(layer_time(larger, counts, kTwoNodesOfFour, costs), layer_time(owners, counts, kTwoNodesOfFour, costs));
  costs.copy_expert = std::chrono::seconds(1);
  EXPECT_EQ(calibrate(owners, counts, kTwoNodesOfFour, budget, costs), owners);
  // With copies in all slots nothing is left to add.
  costs.copy_expert = microseconds(0);
  const mesh::Ragged full = plan_copies(owners, load_of(counts, 16), kTwoNodesOfFour, budget);
  EXPECT_EQ(calibrate(full, counts, kTwoNodesOfFour, budget, costs), full);
}

TEST(Calibration, ATimeIsThatOfTheBusiestRank) {
  using std::chrono::microseconds;
  // Both ranks of node 0 have 3 rows for expert 0 at rank 0; rank 2 of node 1 has 2.
  const mesh::Ragged owners = homes_at({0});
  const std::vector<int64_t> counts{3, 3, 2};
  const LayerCosts costs{.compute_row = microseconds(10), .move_inside = microseconds(100), .move_between = microseconds(1000)};
  EXPECT_EQ(layer_time(owners, counts, {0, 0, 1}, costs), microseconds(8 * 10 + 3 * 100 + 2 * 1000));
}

TEST(Reshard, BalancesExpertsThatAreNotCopiedAndKeepsTheCountPerRank) {
  const base::Random random(11);
  const NodeOf nodes{0, 0, 1, 1};
  std::vector<mesh::Ragged> layers(6, mesh::even_ragged(0, 11, 4));
  std::vector<std::vector<int64_t>> load(6);
  for (size_t layer = 0; layer < 6; ++layer)
    for (uint64_t expert = 0; expert < 11; ++expert)
      load[layer].push_back(static_cast<int64_t>(random.below(layer * 11 + expert, 1000)) * (expert < 3 ? 4 : 1));
  const std::vector<mesh::Ragged> after = reshard(layers, load, nodes, 2);
  std::vector<int> owned(4, 0);
  double before_spread = 0, after_spread = 0;
  const auto spread = [&](const mesh::Ragged& table, size_t layer) {  // of the experts that are not copied
    const std::vector<int> hot = most_loaded(load[layer], 2);
    std::vector<int64_t> sums(4, 0);
    for (size_t expert = 0; expert < 11; ++expert)
      if (std::find(hot.begin(), hot.end(), static_cast<int>(expert)) == hot.end())
        sums[static_cast<size_t>(table.owners[expert].front())] += load[layer][expert];
    return static_cast<double>(*std::max_element(sums.begin(), sums.end())) * 4 /
           static_cast<double>(std::accumulate(sums.begin(), sums.end(), int64_t{0}));
  };
  for (size_t layer = 0; layer < 6; ++layer) {
    EXPECT_NO_THROW(mesh::check(after[layer], 4, 11));
    for (const std::vector<int>& owners : after[layer].owners) {
      ASSERT_EQ(owners.size(), 1u);
      owned[static_cast<size_t>(owners.front())] += 1;
    }
    before_spread += spread(layers[layer], layer);
    after_spread += spread(after[layer], layer);
  }
  EXPECT_THAT(owned, ElementsAre(17, 17, 16, 16));
  EXPECT_LT(after_spread, 0.85 * before_spread);
  EXPECT_GT(moved_experts(layers, after), 0);
  EXPECT_EQ(moved_experts(after, after), 0);
}

TEST(Reshard, PlacesByHand) {
  // Two layers, 4 experts, 2 ranks on 2 nodes, t = 1. Layer 1 has the hottest rest (9): 9 -> rank 0 (tie), 8 -> rank 1, 2 -> rank 1
  // (8 < 9). Layer 0: 3 -> rank 1, which has fewer free slots (2 < 3); 2 -> rank 0; 1 -> rank 0 (2 < 3). Experts copied anyway fill up.
  const std::vector<mesh::Ragged> layers(2, mesh::even_ragged(0, 4, 2));
  const std::vector<mesh::Ragged> after = reshard(layers, std::vector<std::vector<int64_t>>{{1, 3, 7, 2}, {20, 9, 8, 2}}, {0, 1}, 1);
  EXPECT_EQ(after[1].owners, (std::vector<std::vector<int>>{{1}, {0}, {1}, {1}}));
  EXPECT_EQ(after[0].owners, (std::vector<std::vector<int>>{{0}, {1}, {0}, {0}}));
}

}  // namespace
}  // namespace cairn::parallel
