// NoLoCo, CO2 and gossip between remote islands: the results of one world, and islands that come, go, die and stand still.
#include <array>
#include <atomic>
#include <chrono>
#include <set>

#include <gtest/gtest.h>

#include "remote_island_runs.h"

namespace cairn::sync {
namespace {

using namespace std::chrono_literals;

SyncOptions pairs(NolocoFinal final_model = NolocoFinal::one) {
  SyncOptions options{.kind = "noloco"};
  options.exchange.timeout_s = 20;
  options.noloco = {.every = 5, .outer_lr = 0.7, .outer_momentum = 0.5, .pull = 0.6, .final_model = final_model};
  return options;
}

SyncOptions gossip(Topology topology, GossipFinal final_model = GossipFinal::merge, double neighbours = 1.2) {
  SyncOptions options{.kind = "gossip"};
  options.exchange.timeout_s = 20;
  options.gossip = {.every = 5, .topology = topology, .neighbours = neighbours, .final_model = final_model};
  return options;
}

SyncOptions one_round_late(StalenessGap gap, const std::string& wire = "fp32") {
  SyncOptions options{.kind = "co2"};
  options.exchange.timeout_s = 20;
  options.exchange.wire = wire;
  options.exchange.keep = 0.3;
  options.co2 = {.every = 5, .outer_momentum = 0.4, .gap = gap};
  return options;
}

std::vector<IslandRun> runs_of(int islands, const SyncOptions& options, int64_t steps) {
  std::vector<IslandRun> runs;
  for (int i = 0; i < islands; ++i)
    runs.push_back({.island = i, .islands = islands, .founders = islands, .options = options, .steps = steps});
  return runs;
}

// Three islands: one has no partner in every round.
void expect_same_as_in_one_world(const SyncOptions& options) {
  const std::vector<IslandResult> apart = run_islands(runs_of(3, options, 43));
  const std::vector<ToyEnd> together = train_toys(3, {.options = options, .steps = 43, .finish = true});
  for (size_t i = 0; i < apart.size(); ++i) {
    rethrow(apart[i]);
    EXPECT_TRUE(at::equal(apart[i].own, together[i].own)) << options.kind << " " << i;
  }
}

TEST(RemotePeers, NolocoHasTheModelsThatItHasInOneWorld) {
  SyncOptions no_prefetch = pairs();
  no_prefetch.noloco.prefetch_slow = false;
  for (const SyncOptions& options : {pairs(), pairs(NolocoFinal::mean), no_prefetch}) expect_same_as_in_one_world(options);
}

TEST(RemotePeers, GossipHasTheModelsThatItHasInOneWorld) {
  SyncOptions window = gossip(Topology::ring);
  window.gossip.schedule = GossipSchedule::window;
  window.gossip.window_start = 0.5;
  window.gossip.window_width = 0.3;
  for (const SyncOptions& options : {gossip(Topology::random), gossip(Topology::pairwise, GossipFinal::none), window})
    expect_same_as_in_one_world(options);
}

// Each island says that its own loss is its number and one; the loss of the mean is a function of the mean.
TEST(RemotePeers, GossipTracksWhatTheMeanOfAllIsWorth) {
  SyncOptions options = gossip(Topology::pairwise, GossipFinal::none);
  const std::vector<ToyEnd> together = train_toys(3, {.options = options, .steps = 43});
  options.gossip.track_merge_every = 4;
  std::vector<IslandRun> runs = runs_of(3, options, 43);
  std::vector<std::vector<StepMetrics>> tracked(3);
  for (size_t i = 0; i < 3; ++i)
    runs[i].after = [&, i](comm::Bridge&, Sync& rule, int64_t step) {
      ASSERT_EQ(rule.tracks_merge(step), step == 20 || step == 40 || step == 43);
      if (rule.tracks_merge(step))
        tracked[i].push_back(rule.track_merge(step, [&](const std::vector<at::Tensor>& mean) {
          return mean.empty() ? static_cast<double>(i) + 1 : flat(mean).sum().item<double>();
        }));
    };
  const std::vector<IslandResult> apart = run_islands(runs);
  at::Tensor mean = at::zeros_like(together[0].own);
  double distance = 0;
  for (const ToyEnd& one : together) mean += one.own / 3;
  for (const ToyEnd& one : together) distance += (one.own - mean).square().sum().item<double>() / 3;
  for (size_t i = 0; i < 3; ++i) {
    rethrow(apart[i]);
    EXPECT_TRUE(at::equal(apart[i].own, together[i].own));
    ASSERT_EQ(tracked[i].size(), 3U);
    for (size_t j = 0; j < 3; ++j)
      for (const char* name : {"merge_distance", "merge_local_loss", "merge_loss", "merge_gap"})
        EXPECT_EQ(metric(tracked[i][j], name), metric(tracked[0][j], name)) << i << " " << name;
    EXPECT_NEAR(metric(tracked[i][2], "merge_local_loss"), 2, 1e-6);
    EXPECT_NEAR(metric(tracked[i][2], "merge_loss"), mean.sum().item<double>(), 1e-5);
    EXPECT_NEAR(metric(tracked[i][2], "merge_distance"), distance, 1e-5);
  }
}

TEST(RemotePeers, Co2HasTheModelThatItHasInOneWorld) {
  for (const SyncOptions& options :
       {one_round_late(StalenessGap::ratio), one_round_late(StalenessGap::off), one_round_late(StalenessGap::ratio, "topk")})
    expect_same_as_in_one_world(options);
}

struct Died : std::exception {};

// Of three islands one dies. By the permutation of three each of the others would have no partner in a third of the rounds, and the dead
// one in another third.
TEST(RemotePeers, ADeadIslandLeavesThePermutation) {
  constexpr int64_t kSteps = 3000;
  std::vector<IslandRun> runs = runs_of(3, pairs(), kSteps);
  std::array<int, 3> together{};  // rounds in a row of the two that are left
  for (int me = 0; me < 2; ++me) {
    int& rounds = together[static_cast<size_t>(me)];
    runs[static_cast<size_t>(me)].met = [&rounds, me](int partner) { rounds = partner == 1 - me ? rounds + 1 : 0; };
    // Steps take no time here, and to leave takes the others a second or two.
    runs[static_cast<size_t>(me)].after = [&rounds](comm::Bridge& bridge, Sync&, int64_t step) {
      if (step > 100 && rounds < 10) bridge.wait(std::chrono::milliseconds(5));
    };
  }
  runs[2].after = [](comm::Bridge&, Sync&, int64_t step) {
    if (step == 42) throw Died();
  };
  const std::vector<IslandResult> ends = run_islands(runs);
  EXPECT_TRUE(ends[2].error);
  std::set<int> before;
  for (const int me : {0, 1}) {
    const IslandResult& end = ends[static_cast<size_t>(me)];
    rethrow(end);
    ASSERT_EQ(end.partners.size(), kSteps / 5);
    for (const auto& [step, partner] : end.partners) {
      if (step <= 40) before.insert(partner);
      if (step > kSteps - 200) {
        EXPECT_EQ(partner, 1 - me) << step;
      }
    }
  }
  EXPECT_EQ(before, (std::set<int>{-1, 0, 1, 2}));
}

// Two islands of which one dies after it has sent its slow weights for the next round, and before its progress.
TEST(RemotePeers, APartnerThatDiesInTheMiddleOfAnExchangeIsDoneWithout) {
  for (const bool as_gossip : {false, true}) {
    const SyncOptions options = as_gossip ? gossip(Topology::pairwise, GossipFinal::none, 1) : pairs();
    std::vector<IslandRun> runs = runs_of(2, options, 30);
    runs[0].after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
      if (step == 14) until(bridge, [&] { return !bridge.reachable(1); });
    };
    runs[1].after = [&](comm::Bridge&, Sync&, int64_t step) {
      if (step == 12) throw Died();
    };
    const auto begun = std::chrono::steady_clock::now();
    const std::vector<IslandResult> ends = run_islands(runs);
    rethrow(ends[0]);
    EXPECT_TRUE(ends[1].error);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);  // the time limit is 20 s
    if (as_gossip) continue;
    EXPECT_EQ(ends[0].partners, (std::map<int64_t, int>{{5, 1}, {10, 1}, {15, -1}, {20, -1}, {25, -1}, {30, -1}}));
    // Rounds without a partner use the island's own progress.
    ToyModel models[2];
    at::Tensor slow[2] = {models[0].flat(), models[1].flat()};
    at::Tensor momentum = at::zeros_like(slow[0]);
    for (int64_t step = 1; step <= 30; ++step) {
      for (int k = 0; k < 2; ++k) models[k].step(k, step);
      if (step % 5 != 0) continue;
      at::Tensor progress = models[0].flat() - slow[0];
      if (step <= 10) progress = (progress + models[1].flat() - slow[1]) / 2;  // slow weights are equal: there is no pull
      momentum = 0.5 * momentum + 0.7 * progress;
      for (int k = 0; k < 2; ++k) {
        slow[k] = slow[k] + momentum;
        int64_t at = 0;
        for (const mesh::NamedTensor& one : models[k].parameters) {
          one.tensor.copy_(slow[k].narrow(0, at, one.tensor.numel()));
          at += one.tensor.numel();
        }
      }
    }
    EXPECT_LT(furthest(ends[0].own, slow[0]), 1e-5);
  }
}

// Its process lives and its bridge answers, but it takes no step. The others remove it; it comes back with the state of one of them.
TEST(RemotePeers, AnIslandThatIsSilentLeavesThePermutationAndComesBack) {
  for (SyncOptions options : {pairs(), gossip(Topology::pairwise, GossipFinal::none)}) {
    options.exchange.timeout_s = 0.4;
    std::vector<IslandRun> runs = runs_of(3, options, 100'000);
    std::atomic<bool> far = false, over = false;
    for (const size_t i : {0U, 1U})
      runs[i].after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
        if (step % 5 == 0) bridge.wait(2ms);
        if (step > 1500) far = true;
        if (over) throw Died();
      };
    runs[2].after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
      if (step == 42) until(bridge, [&] { return far.load(); });
      if (step > 1600) {
        over = true;
        throw Died();
      }
    };
    const std::vector<IslandResult> ends = run_islands(runs);
    EXPECT_GT(ends[2].returned, 1400) << options.kind;
  }
}

TEST(RemotePeers, ANewcomerTakesTheStateOfOneAndTakesPart) {
  for (const SyncOptions& options : {pairs(), gossip(Topology::pairwise, GossipFinal::merge), one_round_late(StalenessGap::ratio)}) {
    constexpr int64_t kSteps = 1500;
    std::atomic<bool> at_work = false;
    std::vector<IslandRun> runs = runs_of(3, options, kSteps);
    for (const size_t i : {0U, 1U}) {
      runs[i].founders = 2;
      runs[i].after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
        if (step != 60) return;
        at_work = true;
        at_work.notify_all();
        until(bridge, [&] { return bridge.incarnation(2) != 0; });
      };
    }
    runs[2].founders = 2;
    runs[2].ready = [&](comm::Bridge&) { at_work.wait(false); };
    const std::vector<IslandResult> ends = run_islands(runs);
    for (const IslandResult& end : ends) rethrow(end);
    EXPECT_GT(ends[2].begun, 0) << options.kind;
    EXPECT_LT(ends[2].begun, kSteps) << options.kind;
    EXPECT_EQ(ends[2].begun % 5, 0) << options.kind;
    if (options.kind != "noloco") {  // gossip ends with the mean over all
      for (const IslandResult& end : ends) EXPECT_TRUE(at::equal(end.own, ends[0].own)) << options.kind;
      continue;
    }
    for (const size_t me : {0U, 1U, 2U}) {
      std::set<int> late;
      for (const auto& [step, partner] : ends[me].partners)
        if (step > kSteps - 400) late.insert(partner);
      for (const int other : {0, 1, 2}) EXPECT_EQ(late.contains(other), other != static_cast<int>(me)) << me << " " << other;
    }
  }
}

}  // namespace
}  // namespace cairn::sync
