// Remote islands found a run, join it, leave it and die; the others stay bitwise identical.
#include <atomic>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/bridge/bridge.h"
#include "comm/local/local.h"
#include "sync/islands/link.h"
#include "toy_islands.h"

namespace cairn::sync {
namespace {

using namespace std::chrono_literals;

const comm::Key kKey = comm::fresh_key();

SyncOptions streaming(const std::string& wire) {
  SyncOptions options{.kind = "streaming_diloco"};
  options.outer.outer_warmup = 0;
  options.exchange.wire = wire;
  options.exchange.timeout_s = 20;
  options.outer.every = 8;
  options.outer.fragment_layers = 1;
  options.outer.delay = 3;
  return options;
}

SyncOptions plain() {
  SyncOptions options{.kind = "diloco"};
  options.outer.outer_warmup = 0;
  options.exchange.timeout_s = 20;
  options.outer.every = 5;
  return options;
}

// One island of a run: it trains up to `steps` and calls `after` after each.
struct IslandRun {
  int island = 0, islands = 2, founders = 2;
  uint16_t near = 0;  // the port of another island; 0: this is the first
  SyncOptions options;
  int64_t steps = 0;
  bool finish = true;
  std::function<void(comm::Bridge&)> ready = {};
  std::function<void(comm::Bridge&, Sync&, int64_t step)> after = {};
  std::function<bool()> stopping = {};
  std::optional<comm::LinkModel> links = {};
  std::shared_ptr<IslandRun> again = {};  // its next incarnation, after this one
};

struct IslandResult {
  at::Tensor global_model;
  int64_t begun = 0;
  int included = 0;  // islands in the last round
  std::exception_ptr error;
  std::shared_ptr<IslandResult> again = {};
};

IslandResult run_island(const IslandRun& island_run) {
  IslandResult end;
  const auto ended = comm::LocalNetwork(1).run([&](comm::World& world) {
    comm::BridgeOptions options{.site = island_run.island, .sites = island_run.islands, .key = kKey};
    if (island_run.near != 0) options.endpoints = {{"127.0.0.1", island_run.near}};
    options.links = island_run.links;
    comm::Bridge bridge(options);
    if (island_run.ready) island_run.ready(bridge);
    const RemoteIslands remote_islands{.make_link = [&] { return remote_link(bridge, world); }, .founders = island_run.founders};
    ToyModel model;
    const std::unique_ptr<Sync> rule = make_sync(island_run.options, {.replica_group = world.alone(),
                                                                      .model_group = world.alone(),
                                                                      .parameters = model.parameters,
                                                                      .gradients = {},
                                                                      .model = model.whole,
                                                                      .steps = island_run.steps,
                                                                      .seed = 3,
                                                                      .stopping = island_run.stopping,
                                                                      .remote_islands = &remote_islands});
    end.begun = rule->begin(0);
    for (int64_t step = end.begun + 1; step <= island_run.steps; ++step) {
      model.step(island_run.island, step);
      rule->after_step({.step = step, .tokens = 10 + island_run.island, .learning_rate = 0.1}).wait();
      if (const auto position = rule->take_new_position()) step = *position;
      for (const auto& [name, value] : rule->metrics())
        if (name == "islands") end.included = static_cast<int>(value);
      if (island_run.after) island_run.after(bridge, *rule, step);
    }
    if (island_run.finish) {
      rule->finish();
      rule->leave();
    }
    end.global_model = flat(rule->global_parameters()).clone();
  });
  end.error = ended.front();
  return end;
}

// Runs islands as threads; the others know the port of the first.
std::vector<IslandResult> run_islands(std::vector<IslandRun> island_runs) {
  std::vector<IslandResult> ends(island_runs.size());
  std::atomic<int> port = 0;
  const auto ready = island_runs.front().ready;
  island_runs.front().ready = [&, ready](comm::Bridge& bridge) {
    port = bridge.port();
    port.notify_all();
    if (ready) ready(bridge);
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < island_runs.size(); ++i)
    threads.emplace_back([&, i] {
      if (i > 0) {
        port.wait(0);
        island_runs[i].near = static_cast<uint16_t>(port.load());
      }
      ends[i] = run_island(island_runs[i]);
      if (!island_runs[i].again) return;
      island_runs[i].again->near = island_runs[i].near;
      ends[i].again = std::make_shared<IslandResult>(run_island(*island_runs[i].again));
    });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

void rethrow(const IslandResult& end) {
  if (end.error) std::rethrow_exception(end.error);
}

// Waits until the condition holds; the bridge wakes up when an island comes or goes.
template <typename So>
void until(comm::Bridge& bridge, So so) {
  while (!so()) bridge.wait(20ms);
}

TEST(RemoteIslands, TheModelIsBitwiseIdenticalToThatOfIslandsInOneWorld) {
  for (const SyncOptions& options : {plain(), streaming("fp32"), streaming("e3m0")}) {
    std::vector<IslandRun> island_runs;
    for (int i = 0; i < 3; ++i) island_runs.push_back({.island = i, .islands = 3, .founders = 3, .options = options, .steps = 43});
    const std::vector<IslandResult> apart = run_islands(island_runs);
    const std::vector<ToyEnd> together = train_toys(3, {.options = options, .steps = 43, .finish = true});
    for (const IslandResult& end : apart) {
      rethrow(end);
      EXPECT_TRUE(at::equal(end.global_model, together[0].global_model)) << options.kind;
    }
  }
}

// The founding island tells both others. One hears it at once and trains before the other has heard anything.
TEST(RemoteIslands, AFounderThatHearsLastTakesPart) {
  comm::LinkModel links;
  links.latency_matrix.assign(3, std::vector<std::chrono::nanoseconds>(3, 100us));
  links.latency_matrix[0][2] = 500ms;
  const auto begun = std::chrono::steady_clock::now();
  std::vector<IslandRun> island_runs;
  for (int i = 0; i < 3; ++i) {
    island_runs.push_back({.island = i, .islands = 3, .founders = 3, .options = plain(), .steps = 10});
    island_runs.back().links = links;
    island_runs.back().stopping = [&] { return std::chrono::steady_clock::now() - begun > 60s; };  // it would wait for ever
  }
  const std::vector<IslandResult> ends = run_islands(island_runs);
  for (const IslandResult& end : ends) {
    rethrow(end);
    EXPECT_EQ(end.begun, 0);
    EXPECT_EQ(end.included, 3);
    EXPECT_TRUE(at::equal(end.global_model, ends[0].global_model));
  }
}

TEST(RemoteIslands, ANewcomerCatchesUpAndTakesPart) {
  for (const SyncOptions& options : {plain(), streaming("e3m0")}) {
    constexpr int64_t kSteps = 1500;
    std::atomic<bool> at_work = false;
    std::vector<IslandRun> island_runs;
    for (int i = 0; i < 2; ++i) {
      island_runs.push_back({.island = i, .islands = 3, .options = options, .steps = kSteps});
      island_runs.back().after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
        if (step != 60) return;
        at_work = true;
        at_work.notify_all();
        until(bridge, [&] { return bridge.incarnation(2) != 0; });
      };
    }
    island_runs.push_back({.island = 2, .islands = 3, .options = options, .steps = kSteps});
    island_runs.back().ready = [&](comm::Bridge&) { at_work.wait(false); };
    const std::vector<IslandResult> ends = run_islands(island_runs);
    for (const IslandResult& end : ends) {
      rethrow(end);
      EXPECT_TRUE(at::equal(end.global_model, ends[0].global_model)) << options.kind;
      EXPECT_EQ(end.included, 3) << options.kind;
    }
    EXPECT_GT(ends[2].begun, 0) << options.kind;
    EXPECT_LT(ends[2].begun, kSteps) << options.kind;
    EXPECT_EQ(ends[0].begun, 0);
  }
}

struct Killed : std::exception {};

TEST(RemoteIslands, OneFailsAtAnyMomentAndComesAgain) {
  constexpr int64_t kSteps = 1500;
  for (const int64_t fails_at : {41, 45, 48}) {
    std::atomic<bool> here_again = false;
    std::vector<IslandRun> island_runs;
    for (int i = 0; i < 3; ++i) {
      island_runs.push_back({.island = i, .islands = 3, .founders = 3, .options = streaming("e3m0"), .steps = kSteps});
      island_runs.back().after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
        if (step == 100) until(bridge, [&] { return here_again && bridge.incarnation(2) != 0; });
      };
    }
    island_runs[2].again = std::make_shared<IslandRun>(island_runs[2]);
    island_runs[2].again->after = {};
    island_runs[2].again->ready = [&](comm::Bridge&) { here_again = true; };
    island_runs[2].after = [fails_at](comm::Bridge&, Sync&, int64_t step) {
      if (step == fails_at) throw Killed();
    };
    const std::vector<IslandResult> ends = run_islands(island_runs);
    rethrow(ends[0]);
    rethrow(ends[1]);
    EXPECT_TRUE(ends[2].error) << "its first life ended badly";
    ASSERT_TRUE(ends[2].again);
    rethrow(*ends[2].again);
    EXPECT_TRUE(at::equal(ends[0].global_model, ends[1].global_model)) << fails_at;
    EXPECT_TRUE(at::equal(ends[2].again->global_model, ends[0].global_model)) << fails_at;
    EXPECT_GT(ends[2].again->begun, 0);
    EXPECT_EQ(ends[0].included, 3);
  }
}

TEST(RemoteIslands, OneLeavesAndTheOthersGoOn) {
  std::vector<IslandRun> island_runs;
  for (int i = 0; i < 3; ++i) island_runs.push_back({.island = i, .islands = 3, .founders = 3, .options = plain(), .steps = 60});
  island_runs[0].steps = 22;  // the leader
  island_runs[0].finish = false;
  const std::vector<IslandResult> ends = run_islands(island_runs);
  for (const IslandResult& end : ends) rethrow(end);
  EXPECT_TRUE(at::equal(ends[1].global_model, ends[2].global_model));
  EXPECT_EQ(ends[1].included, 2);
}

TEST(RemoteIslands, WhoDiffersInTheRuleIsNotHeard) {
  // The bridge cannot tell (its user says what must be identical); messages carry a signature of rule and model.
  std::vector<IslandRun> island_runs(2);
  for (int i = 0; i < 2; ++i) island_runs[static_cast<size_t>(i)] = {.island = i, .options = plain(), .steps = 1500};
  island_runs[1].options.outer.every = 10;
  island_runs[0].founders = 1;
  std::atomic<bool> over = false;
  island_runs[0].after = [&](comm::Bridge& bridge, Sync&, int64_t step) {
    if (step == 4) until(bridge, [&] { return bridge.incarnation(1) != 0; });
    over = step == 1500;  // long enough for one that is heard to join (ANewcomerCatchesUpAndTakesPart)
  };
  island_runs[1].stopping = [&] { return over.load(); };
  const std::vector<IslandResult> ends = run_islands(island_runs);
  rethrow(ends[0]);
  EXPECT_TRUE(ends[1].error) << "it waits until it is stopped";
  EXPECT_EQ(ends[0].included, 1);
}

}  // namespace
}  // namespace cairn::sync
