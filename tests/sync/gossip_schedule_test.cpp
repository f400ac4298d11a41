#include "sync/gossip_schedule.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/error_of.h"
#include "sync/gossip.h"
#include "sync/toy_islands.h"

namespace cairn::sync {
namespace {

using testing::HasSubstr;

GossipOptions scheduled(GossipSchedule schedule) {
  GossipOptions options;
  options.every = 1;
  options.schedule = schedule;
  return options;
}

TEST(GossipSchedule, RampsFromFewNeighboursToAllIslands) {
  const GossipRun run{.islands = 9, .rounds = 10};
  const GossipPlan linear(scheduled(GossipSchedule::linear), run), cosine(scheduled(GossipSchedule::cosine), run);
  EXPECT_NEAR(linear.at(1).neighbours, 0.2 + 7.8 * 0.1, 1e-12);
  EXPECT_NEAR(linear.at(5).neighbours, 4.1, 1e-12);
  EXPECT_NEAR(cosine.at(5).neighbours, 4.1, 1e-12);
  EXPECT_NEAR(cosine.at(1).neighbours, 0.2 + 7.8 * (1 - std::cos(M_PI / 10)) / 2, 1e-12);
  EXPECT_FALSE(linear.at(9).with_all);
  EXPECT_TRUE(linear.at(10).with_all);
  EXPECT_TRUE(cosine.at(10).with_all);
  GossipOptions some = scheduled(GossipSchedule::linear);
  some.neighbours_end = 2;
  EXPECT_EQ(GossipPlan(some, run).at(10), (GossipIntensity{.neighbours = 2}));
}

TEST(GossipSchedule, SpendsWhatTheBudgetLeavesOnTheLastRounds) {
  const GossipRun run{.islands = 5, .rounds = 40, .seed = 3, .model_bytes = 1000, .all_bytes = 1600, .final_bytes = 1600};
  GossipOptions options = scheduled(GossipSchedule::budget);
  // What the island that sends most sends, whatever the number of last rounds with all.
  const auto spent = [&](int64_t with_all) {
    std::vector<int64_t> sent(5);
    for (int64_t round = 1; round <= run.rounds - with_all; ++round) {
      const auto rows = mixing_rows(Topology::random, 5, 0.2, 3, round);
      for (size_t k = 0; k < rows.size(); ++k)
        for (const int other : rows[k]) sent[static_cast<size_t>(other)] += other == static_cast<int>(k) ? 0 : 1000;
    }
    return *std::max_element(sent.begin(), sent.end()) + (with_all + 1) * 1600;
  };
  for (const int64_t bytes : {20'000, 31'337, 60'000}) {
    options.budget_mib = static_cast<double>(bytes) / (1 << 20);
    const int64_t with_all = GossipPlan(options, run).rounds_with_all();
    EXPECT_GT(with_all, 0);
    EXPECT_LE(spent(with_all), bytes);
    EXPECT_GT(spent(with_all + 1), bytes);
    EXPECT_FALSE(GossipPlan(options, run).at(40 - with_all).with_all);
    EXPECT_TRUE(GossipPlan(options, run).at(40 - with_all + 1).with_all);
  }
  options.budget_mib = 1000;
  EXPECT_EQ(GossipPlan(options, run).rounds_with_all(), 40);
  options.budget_mib = 1e-3;
  EXPECT_THAT(base::message_of([&] { GossipPlan(options, run); }),
              HasSubstr("sync.island.budget_mib = 0.001: 40 rounds with 0.2 neighbours and the final merge take"));
}

TEST(GossipSchedule, RefusesRampsThatHaveNothingToChange) {
  const GossipRun run{.islands = 3, .rounds = 10};
  GossipOptions ring = scheduled(GossipSchedule::cosine), many = scheduled(GossipSchedule::linear);
  ring.topology = Topology::ring;
  many.neighbours_end = 4;
  EXPECT_THAT(base::message_of([&] { GossipPlan(ring, run); }),
              HasSubstr("schedule = \"cosine\": changes the number of random neighbours"));
  EXPECT_THAT(base::message_of([&] { GossipPlan(many, run); }), HasSubstr("neighbours_end = 4: there are 2 other islands"));
}

TEST(GossipSchedule, KeepsARunWithinItsBudget) {
  SyncOptions options{.kind = "gossip"};
  options.gossip = scheduled(GossipSchedule::budget);
  options.gossip.budget_mib = 2000.0 / (1 << 20);
  std::vector<std::vector<at::Tensor>> at_step(4);
  std::vector<double> bytes(4);
  ToyRun run{.options = options, .steps = 20};
  run.after = [&](comm::World& world, Sync& rule, ToyModel& model, int64_t) {
    const auto me = static_cast<size_t>(world.rank());
    at_step[me].push_back(model.flat().clone());
    for (const auto& [name, value] : rule.metrics())
      if (name == "sync_bytes") bytes[me] = value;
  };
  train_toys(4, run);
  int64_t together = 0;
  for (size_t round = 0; round < 20; ++round) together += at::equal(at_step[0][round], at_step[1][round]) ? 1 : 0;
  EXPECT_GT(together, 3);
  EXPECT_LT(together, 20);
  for (size_t round = 20 - static_cast<size_t>(together); round < 20; ++round) EXPECT_TRUE(at::equal(at_step[0][round], at_step[3][round]));
  for (const double sent : bytes) {
    EXPECT_LE(sent + 3 * 84 * 2 / 4, 2000);  // the final merge comes on top: 84 bytes of a model, cut among 4 islands, twice
    EXPECT_GT(sent, 0);
  }
}

}  // namespace
}  // namespace cairn::sync
