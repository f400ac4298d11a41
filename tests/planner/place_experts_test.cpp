#include "planner/experts/place_experts.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "planner/experts/balanced_assignment.h"

namespace cairn::planner {
namespace {

using ::testing::HasSubstr;

// Tokens that stay in their hidden group of experts with probability `inside` at each layer, and with 0.3 when they enter the layer
// `loose`; the experts of a group differ by layer.
struct Planted {
  RoutingTrace trace;
  std::vector<std::vector<int>> group;  // [layer][expert]
};

Planted planted(int layers, int experts, int groups, double inside, int64_t tokens, uint64_t seed, uint64_t loose = UINT64_MAX) {
  Planted made{{layers, {}}, random_placement(layers, experts, groups, seed + 1000).rank};
  std::vector<std::vector<std::vector<int>>> members(static_cast<size_t>(layers),
                                                     std::vector<std::vector<int>>(static_cast<size_t>(groups)));
  for (size_t layer = 0; layer < members.size(); ++layer)
    for (int e = 0; e < experts; ++e) members[layer][static_cast<size_t>(made.group[layer][static_cast<size_t>(e)])].push_back(e);
  const base::Random random(seed);
  for (int64_t token = 0; token < tokens; ++token) {
    const base::Random of_token = random.for_index(static_cast<uint64_t>(token));
    uint64_t group = of_token.below(0, static_cast<uint64_t>(groups));
    for (uint64_t layer = 0; layer < static_cast<uint64_t>(layers); ++layer) {
      if (of_token.for_name("stay").uniform(layer) >= (layer == loose ? 0.3 : inside))
        group = of_token.below(layer + 1, static_cast<uint64_t>(groups));
      const std::vector<int>& these = members[layer][group];
      made.trace.experts.push_back(static_cast<int16_t>(these[of_token.for_name("expert").below(layer, these.size())]));
    }
  }
  return made;
}

double kept(const ExpertPlacement& placement, const Affinity& affinity) { return count_hops(placement, affinity, 0).kept_fraction(); }

// All ways to put `experts` evenly on `ranks`.
std::vector<std::vector<int>> balanced_layers(int experts, int ranks) {
  std::vector<int> labels;
  for (int e = 0; e < experts; ++e) labels.push_back(e / (experts / ranks));
  std::vector<std::vector<int>> all;
  do all.push_back(labels);
  while (std::next_permutation(labels.begin(), labels.end()));
  return all;
}

// The exact optimum: dynamic programming along the layers over all balanced placements of each.
int64_t least_cost(const Affinity& affinity, int ranks, int node_ranks, const HopCosts& costs) {
  const std::vector<std::vector<int>> states = balanced_layers(affinity.experts, ranks);
  std::vector<int64_t> least(states.size(), 0);
  for (int layer = 0; layer + 1 < affinity.layers; ++layer) {
    std::vector<int64_t> next(states.size(), INT64_MAX);
    for (size_t a = 0; a < states.size(); ++a)
      for (size_t b = 0; b < states.size(); ++b) {
        int64_t cost = least[a];
        for (int e = 0; e < affinity.experts; ++e)
          for (int f = 0; f < affinity.experts; ++f) {
            const int p = states[a][static_cast<size_t>(e)], q = states[b][static_cast<size_t>(f)];
            cost += affinity.at(layer, e, f) * (p == q ? 0 : p / node_ranks == q / node_ranks ? costs.inside : costs.between);
          }
        next[b] = std::min(next[b], cost);
      }
    least = std::move(next);
  }
  return *std::min_element(least.begin(), least.end());
}

TEST(BalancedAssignment, IsExact) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const base::Random random(seed);
    const int bins = 1 + static_cast<int>(random.below(1000, 3)),
              items = bins * (1 + static_cast<int>(random.below(1001, bins == 3 ? 2 : 3)));
    std::vector<int64_t> gain;
    for (uint64_t i = 0; i < static_cast<uint64_t>(items * bins); ++i) gain.push_back(static_cast<int64_t>(random.below(i, 20)) - 5);
    const auto value = [&](const std::vector<int>& bin_of) {
      int64_t sum = 0;
      for (int item = 0; item < items; ++item) sum += gain[static_cast<size_t>(item * bins + bin_of[static_cast<size_t>(item)])];
      return sum;
    };
    int64_t best = INT64_MIN;
    for (const std::vector<int>& labels : balanced_layers(items, bins)) best = std::max(best, value(labels));
    const std::vector<int> found = assign_balanced(gain, items, bins);
    for (int bin = 0; bin < bins; ++bin) EXPECT_EQ(std::count(found.begin(), found.end(), bin), items / bins);
    EXPECT_EQ(value(found), best) << seed;
  }
}

TEST(PlaceExperts, CountsTransitionsAndHops) {
  const RoutingTrace trace{3, {0, 1, 2, 0, 1, 3, 3, 0, 0}};
  const Affinity affinity = count_affinity(trace, 4);
  EXPECT_EQ(affinity.at(0, 0, 1), 2);
  EXPECT_EQ(affinity.at(1, 1, 2), 1);
  EXPECT_EQ(affinity.at(1, 1, 3), 1);
  EXPECT_EQ(affinity.transitions(), 6);
  // One expert per rank, two nodes. Token 1: 0 -> 1 inside, 1 -> 2 between; 2: inside, between; 3: 3 -> 0 between, 0 -> 0 none.
  const Hops hops = count_hops(contiguous_placement(3, 4, 4), affinity, 2);
  EXPECT_EQ(hops.none, 1);
  EXPECT_EQ(hops.inside, 2);
  EXPECT_EQ(hops.between, 3);
  EXPECT_EQ(hops.cost({.inside = 1, .between = 2}), 8);
}

TEST(PlaceExperts, FindsTheOptimumOfSmallCases) {
  for (const auto& [experts, ranks, node_ranks] : {std::tuple{8, 2, 2}, {4, 4, 2}, {6, 3, 3}, {4, 4, 4}}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const Affinity affinity = count_affinity(planted(4, experts, ranks, 0.5, 300, seed).trace, experts);
      const ExpertPlacement found = place_experts(affinity, {.ranks = ranks, .node_ranks = node_ranks});
      const int64_t best = least_cost(affinity, ranks, node_ranks, {});
      const int64_t cost = count_hops(found, affinity, node_ranks).cost({});
      EXPECT_GE(cost, best);
      EXPECT_LE(static_cast<double>(cost), 1.02 * static_cast<double>(best)) << experts << " on " << ranks << ", seed " << seed;
    }
  }
}

TEST(PlaceExperts, FindsPlantedGroupsInTime) {
  for (const int experts : {8, 16, 64}) {
    for (const int ranks : {2, 4, 8}) {
      const Planted made = planted(12, experts, ranks, 0.9, 5000, static_cast<uint64_t>(experts * ranks));
      const Affinity affinity = count_affinity(made.trace, experts);
      const auto begun = std::chrono::steady_clock::now();
      const ExpertPlacement found = place_experts(affinity, {.ranks = ranks});
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
      const double optimum = kept({ranks, made.group}, affinity), contiguous = kept(contiguous_placement(12, experts, ranks), affinity);
      EXPECT_GT(optimum, 0.88);
      EXPECT_LT(contiguous, 0.75 * optimum);
      EXPECT_GE(kept(found, affinity), 0.98 * optimum) << experts << " on " << ranks;
      EXPECT_LT(seconds, 2) << experts << " on " << ranks;
      std::vector<int> held(static_cast<size_t>(ranks), 0);
      for (const std::vector<int>& layer : found.rank)
        for (const int rank : layer) held[static_cast<size_t>(rank)] += 1;
      for (const int count : held) EXPECT_EQ(count, 12 * experts / ranks);
    }
  }
}

// Two halves, each well placed, whose ranks are named differently: no layer can move alone.
TEST(PlaceExperts, JoinsHalvesThatAreNamedDifferently) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const Planted made = planted(8, 16, 8, 0.95, 3000, seed, 4);
    const Affinity affinity = count_affinity(made.trace, 16);
    const double found = kept(place_experts(affinity, {.ranks = 8, .restarts = 0}), affinity);
    EXPECT_GE(found, 0.995 * kept({8, made.group}, affinity)) << seed;
  }
}

TEST(PlaceExperts, GainsLittleFromUniformTransitions) {
  for (const auto& [experts, ranks] : {std::pair{8, 2}, {8, 4}, {16, 4}}) {
    const Affinity affinity = count_affinity(planted(8, experts, 1, 0, 50000, 3).trace, experts);
    const double found = kept(place_experts(affinity, {.ranks = ranks}), affinity);
    EXPECT_NEAR(found, 1.0 / ranks, 0.05) << experts << " on " << ranks;
    EXPECT_GE(found, kept(contiguous_placement(8, experts, ranks), affinity));
  }
}

TEST(PlaceExperts, KeepsTransitionsInsideNodesWhereRanksCannotHoldThem) {
  // Groups of 8 experts for ranks that hold 4 and nodes that hold 8: half of the transitions leave their rank, few leave their node.
  const Planted made = planted(8, 16, 2, 0.95, 4000, 9);
  const Affinity affinity = count_affinity(made.trace, 16);
  const ExpertPlacement found = place_experts(affinity, {.ranks = 4, .node_ranks = 2});
  const Hops hops = count_hops(found, affinity, 2), before = count_hops(contiguous_placement(8, 16, 4), affinity, 2);
  const auto all = static_cast<double>(affinity.transitions());
  EXPECT_LT(static_cast<double>(hops.between) / all, 0.04);
  EXPECT_GT(static_cast<double>(before.between) / all, 0.4);
  EXPECT_LT(hops.cost({}), before.cost({}));
}

TEST(PlaceExperts, TheSameSeedGivesTheSamePlacement) {
  const Affinity affinity = count_affinity(planted(6, 12, 3, 0.6, 500, 4).trace, 12);
  const PlacementOptions options{.ranks = 6, .node_ranks = 2, .restarts = 4, .seed = 8};
  EXPECT_EQ(place_experts(affinity, options), place_experts(affinity, options));
}

TEST(PlaceExperts, RefusesExpertsThatDoNotDivide) {
  const Affinity affinity = count_affinity({2, {0, 5}}, 6);
  const auto refusal = [&](const PlacementOptions& options) {
    try {
      place_experts(affinity, options);
    } catch (const Error& error) {
      return error.sentence();
    }
    return std::string();
  };
  EXPECT_THAT(refusal({.ranks = 4}), HasSubstr("mesh.ep = 4: 6 experts do not divide over the ranks"));
  EXPECT_THAT(refusal({.ranks = 6, .node_ranks = 4}), HasSubstr("expert.node_ranks = 4: 6 ranks are no whole nodes"));
  EXPECT_THAT(
      [] {
        try {
          count_affinity({2, {0, 6}}, 6);
        } catch (const Error& error) {
          return error.sentence();
        }
        return std::string();
      }(),
      HasSubstr("sends token 0 to expert 6 of 6 in layer 1"));
}

}  // namespace
}  // namespace cairn::planner
