// NoLoCo, CO2 and gossip against their recurrences on one process.
#include <set>

#include <gtest/gtest.h>

#include "base/error.h"
#include "sync/gossip.h"
#include "sync/islands/pairing.h"
#include "sync/toy_islands.h"

namespace cairn::sync {
namespace {

void put(ToyModel& model, const at::Tensor& flat) {
  int64_t at = 0;
  for (const mesh::NamedTensor& one : model.parameters) {
    one.tensor.copy_(flat.narrow(0, at, one.tensor.numel()));
    at += one.tensor.numel();
  }
}

SyncOptions noloco(int64_t every, double lr, double momentum, double pull, int64_t group = 2) {
  SyncOptions options{.kind = "noloco"};
  options.noloco = {.every = every, .group = group, .outer_lr = lr, .outer_momentum = momentum, .pull = pull};
  options.noloco.final_model = NolocoFinal::one;
  return options;
}

std::vector<at::Tensor> noloco_by_hand(int islands, int64_t steps, const NolocoOptions& o) {
  std::vector<ToyModel> models(static_cast<size_t>(islands));
  std::vector<at::Tensor> slow, momentum;
  for (const ToyModel& model : models) {
    slow.push_back(model.flat());
    momentum.push_back(at::zeros_like(slow.back()));
  }
  for (int64_t step = 1; step <= steps; ++step) {
    for (int k = 0; k < islands; ++k) models[static_cast<size_t>(k)].step(k, step);
    if (step % o.every != 0) continue;
    std::vector<at::Tensor> next_slow = slow;
    for (int k = 0; k < islands; ++k) {
      const std::vector<int> group = group_of(k, islands, static_cast<int>(o.group), 3, step / o.every);
      at::Tensor progress = at::zeros_like(slow[0]), mean = at::zeros_like(slow[0]);
      for (const int j : group) {
        progress += (models[static_cast<size_t>(j)].flat() - slow[static_cast<size_t>(j)]) / static_cast<double>(group.size());
        mean += slow[static_cast<size_t>(j)] / static_cast<double>(group.size());
      }
      const auto i = static_cast<size_t>(k);
      momentum[i] = o.outer_momentum * momentum[i] + o.outer_lr * progress - o.pull * (slow[i] - mean);
      next_slow[i] = slow[i] + momentum[i];
    }
    slow = next_slow;
    for (int k = 0; k < islands; ++k) put(models[static_cast<size_t>(k)], slow[static_cast<size_t>(k)]);
  }
  std::vector<at::Tensor> ends;
  for (const ToyModel& model : models) ends.push_back(model.flat());
  return ends;
}

TEST(Noloco, FollowsItsRecurrencesForOddNumbersAndGroupsToo) {
  for (const auto& [islands, group] : std::vector<std::pair<int, int64_t>>{{1, 2}, {2, 2}, {4, 2}, {5, 2}, {7, 3}})
    for (const bool prefetch : {true, false}) {
      SyncOptions options = noloco(4, 0.7, 0.5, 0.6, group);
      options.noloco.prefetch_slow = prefetch;
      const auto expected = noloco_by_hand(islands, 24, options.noloco);
      const auto found = train_toys(islands, {.options = options, .steps = 24});
      for (int k = 0; k < islands; ++k) EXPECT_LT(furthest(found[k].own, expected[k]), 1e-5) << islands << " " << group;
    }
}

TEST(Noloco, SendsTwoTensorsARoundAndCallsNoCollective) {
  SyncOptions options = noloco(4, 0.7, 0.5, 0.7);
  harness::Run run = harness::on_ranks(4, [&](comm::World& world) { train_toy(world, {.options = options, .steps = 24}); });
  for (int rank = 0; rank < 4; ++rank) {
    // 21 floats and a head of 48 bytes each.
    EXPECT_EQ(run.ledger.bytes_sent(rank, comm::Purpose::gradient), 6 * (21 * 4 + 48));
    EXPECT_EQ(run.ledger.bytes_sent(rank, comm::Purpose::parameter), 6 * (21 * 4 + 48));
    EXPECT_EQ(run.ledger.messages_sent(rank, comm::Purpose::parameter), 6);
  }
}

TEST(Noloco, DoesWithoutAPartnerThatDies) {
  SyncOptions options = noloco(4, 0.7, 0.5, 0.7);
  ToyRun run{.options = options, .steps = 24};
  run.after = [&](comm::World& world, Sync&, ToyModel&, int64_t step) {
    if (world.rank() == 1 && step == 10) throw comm::Killed();
  };
  std::vector<bool> ended(4);
  comm::LocalNetwork network(4, {.seed = 2});
  const auto errors = network.run([&](comm::World& world) {
    train_toy(world, run);
    ended[static_cast<size_t>(world.rank())] = true;
  });
  for (int k = 0; k < 4; ++k) EXPECT_EQ(errors[static_cast<size_t>(k)] == nullptr, k != 1);
}

TEST(Noloco, RefusesWhatWouldDriftApart) {
  EXPECT_NEAR(contraction(0.5, 0.7, 2), 0.70, 0.005);
  EXPECT_NEAR(contraction(0, 1, 2), 0.50, 0.005);
  EXPECT_NEAR(contraction(0.5, 1.5, 2), 1.00, 0.005);
  EXPECT_NEAR(contraction(0.9, 0.7, 2), 1.10, 0.005);
  for (const double momentum : {0.0, 0.3, 0.5, 0.9}) EXPECT_NEAR(strongest_pull(momentum, 2), 2 * (1 - momentum * momentum), 1e-3);
  harness::on_ranks(2, [](comm::World& world) {
    try {
      train_toy(world, {.options = noloco(4, 0.7, 0.9, 0.7), .steps = 8});
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the pull must lie between 0 and 0.38"), std::string::npos) << error.what();
    }
  });
}

TEST(Pairing, IsTheSameEverywhere) {
  EXPECT_EQ(shuffled(8, 1, 1), shuffled(8, 1, 1));
  EXPECT_NE(shuffled(8, 1, 1), shuffled(8, 1, 2));
  EXPECT_NE(shuffled(8, 1, 1), shuffled(8, 2, 1));
  std::set<int> all;
  for (const int island : group_of(6, 7, 2, 5, 9)) all.insert(island);
  EXPECT_TRUE(all.contains(6));
  // Written down, so that a change of the generator is noticed: islands of two builds would pair up differently.
  EXPECT_EQ(shuffled(6, 42, 3), (std::vector<int>{0, 4, 2, 1, 5, 3}));
}

SyncOptions co2(int64_t every, double momentum, StalenessGap gap, double clip) {
  SyncOptions options{.kind = "co2"};
  options.co2 = {.every = every, .outer_lr = 1, .outer_momentum = momentum, .gap = gap, .clip = clip};
  return options;
}

at::Tensor co2_by_hand(int islands, int64_t rounds, const Co2Options& o) {
  std::vector<ToyModel> models(static_cast<size_t>(islands));
  at::Tensor start = models[0].flat(), before, momentum = at::zeros_like(start), late;
  double late_move = 0;
  const auto outer = [&](const at::Tensor& stale, const at::Tensor& from, double gap) {
    momentum = o.outer_momentum * momentum + (from - stale) / gap;
    const double most = o.clip * 0.1 * static_cast<double>(o.every);
    return start - o.outer_lr * (o.clip > 0 ? momentum.clamp(-most, most) : momentum);
  };
  for (int64_t t = 0; t < rounds; ++t) {
    at::Tensor mean = at::zeros_like(start);
    double move = 0;
    for (int k = 0; k < islands; ++k) {
      ToyModel& model = models[static_cast<size_t>(k)];
      put(model, start);
      for (int64_t i = 1; i <= o.every; ++i) {
        model.step(k, t * o.every + i);
        if (i == 1) move += (model.flat() - start).norm().item<double>() / islands;
      }
      mean += model.flat() / islands;
    }
    at::Tensor next = start;
    if (t > 0) {
      double gap = o.gap == StalenessGap::constant ? o.gap_value : 1;
      if (o.gap == StalenessGap::ratio) gap = 1 + (start - before).norm().item<double>() / (static_cast<double>(o.every) * late_move);
      next = outer(late, before, gap);
    }
    before = start;
    start = next;
    late = mean;
    late_move = move;
  }
  start = outer(late, before, 1);
  return start;
}

TEST(Co2, FollowsItsRecurrences) {
  for (const int islands : {2, 3})
    for (const StalenessGap gap : {StalenessGap::ratio, StalenessGap::off, StalenessGap::constant})
      for (const double clip : {0.0, 0.02}) {
        SyncOptions options = co2(4, 0.5, gap, clip);
        options.co2.gap_value = 1.5;
        const at::Tensor expected = co2_by_hand(islands, 6, options.co2);
        for (const ToyEnd& end : train_toys(islands, {.options = options, .steps = 24, .finish = true})) {
          EXPECT_LT(furthest(end.own, expected), 1e-5) << islands << " " << base::enum_name(kStalenessGapNames, gap) << " " << clip;
          EXPECT_TRUE(at::equal(end.own, end.global_model));
        }
      }
}

TEST(Co2, StartsEveryRoundBitwiseIdenticalEverywhere) {
  for (const std::string wire : {"fp32", "bf16", "e3m0"}) {
    SyncOptions options = co2(4, 0.5, StalenessGap::ratio, 1);
    options.exchange.wire = wire;
    std::vector<std::vector<at::Tensor>> starts(3);
    ToyRun run{.options = options, .steps = 24};
    run.after = [&](comm::World& world, Sync& rule, ToyModel&, int64_t step) {
      if (step % 4 == 0) starts[static_cast<size_t>(world.rank())].push_back(flat(rule.global_parameters()).clone());
    };
    train_toys(3, run);
    for (size_t round = 0; round < 6; ++round)
      for (int k = 1; k < 3; ++k) EXPECT_TRUE(at::equal(starts[static_cast<size_t>(k)][round], starts[0][round])) << wire << round;
    EXPECT_TRUE(at::equal(starts[0][0], ToyModel().flat()));  // nothing has arrived at the end of the first round
    EXPECT_FALSE(at::equal(starts[0][1], starts[0][0]));
  }
}

TEST(Co2, MovesNoNumberFurtherThanTheClipSays) {
  std::vector<at::Tensor> starts;
  ToyRun run{.options = co2(4, 0.5, StalenessGap::off, 0.01), .steps = 24};
  run.after = [&](comm::World& world, Sync& rule, ToyModel&, int64_t step) {
    if (world.rank() == 0 && step % 4 == 0) starts.push_back(flat(rule.global_parameters()).clone());
  };
  train_toys(2, run);
  double most = 0;
  for (size_t i = 1; i < starts.size(); ++i) most = std::max(most, furthest(starts[i], starts[i - 1]));
  EXPECT_LE(most, 0.01 * 0.1 * 4 * 1.00001);
  EXPECT_GT(most, 0.01 * 0.1 * 4 * 0.9);  // it does bind
}

TEST(Co2, ChoosesRoundsThatHideTheTraffic) {
  std::vector<double> every(2);
  ToyRun run{.options = co2(0, 0.2, StalenessGap::off, 0), .steps = 120};
  run.after = [&](comm::World& world, Sync& rule, ToyModel&, int64_t) {
    world.timer(world.clock().now() + std::chrono::milliseconds(10)).wait();  // what a step takes
    for (const auto& [name, value] : rule.metrics())
      if (name == "every") every[static_cast<size_t>(world.rank())] = value;
  };
  comm::LocalNetwork network(2, {.seed = 1, .link = {.latency = std::chrono::milliseconds(40), .jitter = 0}});
  for (const auto& error : network.run([&](comm::World& world) { train_toy(world, run); })) EXPECT_EQ(error, nullptr);
  // An update, a proposal and its acknowledgement: 40 ms each, less what one island began later; 1.2 times that in steps of 10 ms.
  EXPECT_GE(every[0], 7);
  EXPECT_LE(every[0], 20);
  EXPECT_EQ(every[0], every[1]);
}

TEST(Gossip, IsAProductWithTheMixingMatrix) {
  for (const int islands : {2, 5, 9})
    for (const Topology topology : {Topology::random, Topology::pairwise, Topology::ring, Topology::exponential, Topology::complete}) {
      SyncOptions options{.kind = "gossip"};
      options.gossip = {.every = 2, .topology = topology, .neighbours = islands > 2 ? 1.4 : 0.6};
      options.gossip.final_model = GossipFinal::none;
      std::vector<ToyModel> models(static_cast<size_t>(islands));
      for (int64_t step = 1; step <= 40; ++step) {
        for (int k = 0; k < islands; ++k) models[static_cast<size_t>(k)].step(k, step);
        if (step % 2 != 0) continue;
        std::vector<at::Tensor> before, after;
        for (const ToyModel& model : models) before.push_back(model.flat().clone());
        for (const std::vector<int>& row : mixing_rows(topology, islands, options.gossip.neighbours, 3, step / 2)) {
          at::Tensor sum = at::zeros_like(before[0]);
          for (const int j : row) sum += before[static_cast<size_t>(j)] / static_cast<double>(row.size());
          after.push_back(sum);
        }
        for (int k = 0; k < islands; ++k) put(models[static_cast<size_t>(k)], after[static_cast<size_t>(k)]);
      }
      const auto found = train_toys(islands, {.options = options, .steps = 40});
      for (int k = 0; k < islands; ++k)
        EXPECT_LT(furthest(found[k].own, models[static_cast<size_t>(k)].flat()), 1e-5)
            << base::enum_name(kTopologyNames, topology) << " " << islands;
    }
}

TEST(Gossip, DrawsAsManyOthersAsItSays) {
  int64_t drawn = 0;
  for (int64_t round = 0; round < 2000; ++round)
    for (const std::vector<int>& row : mixing_rows(Topology::random, 8, 0.2, 1, round)) drawn += static_cast<int64_t>(row.size()) - 1;
  EXPECT_NEAR(static_cast<double>(drawn) / 16000, 0.2, 0.01);
  int64_t both = 0, first = 0, twice = 0;  // islands, and rounds that follow each other, draw independently
  bool before = false;
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (int64_t round = 1; round <= 500; ++round) {
      const auto rows = mixing_rows(Topology::random, 2, 0.2, seed, round);
      first += rows[0].size() == 2;
      both += rows[0].size() == 2 && rows[1].size() == 2;
      twice += before && rows[0].size() == 2;
      before = rows[0].size() == 2;
    }
  EXPECT_NEAR(static_cast<double>(first) / 10000, 0.2, 0.02);
  EXPECT_NEAR(static_cast<double>(both) / 10000, 0.04, 0.01);
  EXPECT_NEAR(static_cast<double>(twice) / 10000, 0.04, 0.01);
  for (int64_t round = 0; round < 50; ++round) {
    const auto rows = mixing_rows(Topology::pairwise, 7, 0, 1, round);
    int alone = 0;
    for (int k = 0; k < 7; ++k) {
      alone += rows[static_cast<size_t>(k)].size() == 1 ? 1 : 0;
      for (const int j : rows[static_cast<size_t>(k)]) {
        EXPECT_EQ(rows[static_cast<size_t>(j)], rows[static_cast<size_t>(k)]);
      }
    }
    EXPECT_EQ(alone, 1);
  }
}

TEST(Gossip, EndsWithTheMeanOfAll) {
  SyncOptions options{.kind = "gossip"};
  options.gossip = {.every = 4, .topology = Topology::random, .neighbours = 0.5};
  const auto apart = train_toys(5, {.options = options, .steps = 18});
  const auto merged = train_toys(5, {.options = options, .steps = 18, .finish = true});
  at::Tensor mean = at::zeros_like(apart[0].own);
  for (const ToyEnd& end : apart) mean += end.own / 5;
  for (const ToyEnd& end : merged) {
    EXPECT_LT(furthest(end.own, mean), 1e-6);
    EXPECT_TRUE(at::equal(end.own, merged[0].own));
  }
  EXPECT_GT(furthest(apart[0].own, mean), 1e-2);
}

TEST(Gossip, AveragesWithAllInItsWindow) {
  SyncOptions options{.kind = "gossip"};
  options.gossip = {.every = 2,
                    .topology = Topology::random,
                    .neighbours = 0,
                    .schedule = GossipSchedule::window,
                    .window_start = 0.5,
                    .window_width = 0.2};
  options.gossip.final_model = GossipFinal::none;
  std::vector<std::vector<at::Tensor>> at_step(3);
  ToyRun run{.options = options, .steps = 20};
  run.after = [&](comm::World& world, Sync&, ToyModel& model, int64_t step) {
    if (step % 2 == 0) at_step[static_cast<size_t>(world.rank())].push_back(model.flat().clone());
  };
  train_toys(3, run);
  for (size_t round = 0; round < 10; ++round) EXPECT_EQ(at::equal(at_step[0][round], at_step[1][round]), round == 5 || round == 6) << round;
}

// Loss: the distance of a model from a point, squared. Rounds before and between tracked ones average with all, too.
TEST(Gossip, TracksWhatTheMeanOfAllIsWorthAndTrainsAsIfItDidNot) {
  SyncOptions options{.kind = "gossip"};
  options.gossip = {.every = 2, .topology = Topology::random, .neighbours = 0.5, .schedule = GossipSchedule::window};
  options.gossip.window_start = 0.4, options.gossip.window_width = 0.3;
  const auto without = train_toys(5, {.options = options, .steps = 18, .finish = true});
  options.gossip.track_merge_every = 2;
  const auto loss = [](const at::Tensor& values) { return (values - 0.25).square().sum().item<double>(); };
  std::vector<std::vector<at::Tensor>> models(5);  // by island, after each step
  std::vector<std::vector<StepMetrics>> tracked(5);
  ToyRun run{.options = options, .steps = 18, .finish = true};
  run.after = [&](comm::World& world, Sync& rule, ToyModel& model, int64_t step) {
    const auto me = static_cast<size_t>(world.rank());
    models[me].push_back(model.flat().clone());
    ASSERT_EQ(rule.tracks_merge(step), step % 4 == 0 || step == 18) << step;
    if (!rule.tracks_merge(step)) return;
    tracked[me].push_back(
        rule.track_merge(step, [&](const std::vector<at::Tensor>& these) { return loss(these.empty() ? model.flat() : flat(these)); }));
    EXPECT_TRUE(at::equal(model.flat(), models[me].back()));
  };
  const auto with = train_toys(5, run);
  for (size_t k = 0; k < 5; ++k) EXPECT_TRUE(at::equal(with[k].own, without[k].own));
  const std::vector<size_t> steps{4, 8, 12, 16, 18};
  for (size_t i = 0; i < steps.size(); ++i) {
    at::Tensor mean = at::zeros_like(models[0][0]).to(at::kDouble);
    for (size_t k = 0; k < 5; ++k) mean += models[k][steps[i] - 1].to(at::kDouble) / 5;
    double local = 0, distance = 0;
    for (size_t k = 0; k < 5; ++k) {
      local += loss(models[k][steps[i] - 1]) / 5;
      distance += (models[k][steps[i] - 1] - mean).square().sum().item<double>() / 5;
    }
    for (size_t k = 0; k < 5; ++k) {
      ASSERT_EQ(tracked[k].size(), steps.size());
      EXPECT_NEAR(metric(tracked[k][i], "merge_local_loss"), local, 1e-5) << steps[i];
      EXPECT_NEAR(metric(tracked[k][i], "merge_loss"), loss(mean), 1e-5) << steps[i];
      EXPECT_NEAR(metric(tracked[k][i], "merge_gap"), local - loss(mean), 1e-5) << steps[i];
      EXPECT_NEAR(metric(tracked[k][i], "merge_distance"), distance, 1e-5) << steps[i];
      EXPECT_GT(metric(tracked[k][i], "merge_bytes"), static_cast<double>(i + 1) * 21 * 4) << steps[i];  // 21 numbers, at least once each
    }
    EXPECT_EQ(distance < 1e-10, steps[i] == 12) << steps[i];  // in the window all have one model
  }
}

// Messages advance only in calls: while an island waits for its GPU, `progress` completes what is in flight.
TEST(IslandRules, ProgressWhileWaitingForAGpu) {
  constexpr auto kLatency = std::chrono::milliseconds(40), kLook = std::chrono::milliseconds(1);
  for (const std::string kind : {"co2", "streaming_diloco"})
    for (const bool moves : {false, true}) {
      SyncOptions options{.kind = kind};
      options.outer = {.every = 8, .fragment_layers = 1, .delay = 2};
      options.co2 = {.every = 6};
      double waited = 0;
      int64_t looks = 0, rounds = 0;
      harness::on_ranks(2, {.link = {.latency = kLatency, .jitter = 0}}, [&](comm::World& world) {
        ToyRun run{.options = options, .steps = 24};
        run.after = [&](comm::World& w, Sync& rule, ToyModel&, int64_t) {
          while (moves && rule.progress(kLook))
            if (w.rank() == 0) ++looks;
          for (const auto& [name, value] : rule.metrics())
            if (name == "stall_s" && w.rank() == 0) waited += value, ++rounds;
        };
        train_toy(world, run);
      });
      EXPECT_GE(rounds, 2) << kind;
      if (moves) {
        EXPECT_EQ(waited, 0) << kind;
        EXPECT_GE(looks, rounds) << kind;  // it says that there is something to do while there is
      } else {
        EXPECT_GT(waited, 0.03) << kind;
      }
    }
}

}  // namespace
}  // namespace cairn::sync
