// Remote islands found a run, join it, leave it and die; the others stay bitwise identical.
#include <atomic>

#include <gtest/gtest.h>

#include "remote_island_runs.h"

namespace cairn::sync {
namespace {

using namespace std::chrono_literals;

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
      island_runs.push_back({.island = i, .islands = 3, .options = options, .steps = kSteps, .slow_from = 60, .slow_until = 3});
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
    for (const size_t i : {0U, 1U}) {
      island_runs[i].slow_from = 100;
      island_runs[i].slow_until = 3;
    }
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
