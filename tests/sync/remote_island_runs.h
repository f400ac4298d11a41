#pragma once
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/bridge/bridge.h"
#include "comm/local/local.h"
#include "comm/net/key.h"
#include "sync/islands/link.h"
#include "toy_islands.h"

namespace cairn::sync {

inline const comm::Key& run_key() {
  static const comm::Key key = comm::fresh_key();
  return key;
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
  std::function<void(int partner)> met = {};  // after a round of a rule that has partners
  std::function<bool()> stopping = {};
  // Steps take no time here, and to join takes a while on a busy machine. After `slow_from` each step takes 20 ms until a round has had
  // `slow_until` islands.
  int64_t slow_from = 0;
  int slow_until = 0;
  std::optional<comm::LinkModel> links = {};
  std::shared_ptr<IslandRun> again = {};  // its next incarnation, after this one
};

struct IslandResult {
  at::Tensor global_model, own;
  std::map<int64_t, int> partners;  // by step, of rules that have one
  int64_t returned = -1;            // the step at which it came back to the others; -1: it was never left out
  std::string interruption;
  int64_t begun = 0;
  int included = 0;  // islands in the last round
  std::exception_ptr error;
  std::shared_ptr<IslandResult> again = {};
};

inline IslandResult run_island(const IslandRun& island_run) {
  IslandResult end;
  const auto ended = comm::LocalNetwork(1).run([&](comm::World& world) {
    comm::BridgeOptions options{.site = island_run.island, .sites = island_run.islands, .key = run_key()};
    if (island_run.near != 0) options.endpoints = {{"127.0.0.1", island_run.near}};
    options.links = island_run.links;
    comm::Bridge bridge(options);
    if (island_run.ready) island_run.ready(bridge);
    const RemoteIslands remote_islands{
        .make_link = [&] { return remote_link(bridge, world); },
        .founders_limit = std::chrono::minutes(1),  // an island that finds nobody fails its test, and does not hold it up
        .count = island_run.islands,
        .founders = island_run.founders};
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
      if (const auto position = rule->take_new_position()) step = end.returned = *position;
      for (const auto& [name, value] : rule->metrics()) {
        if (name == "islands") end.included = static_cast<int>(value);
        if (name != "partner") continue;
        end.partners[step] = static_cast<int>(value);
        if (island_run.met) island_run.met(static_cast<int>(value));
      }
      if (step > island_run.slow_from && end.included < island_run.slow_until) bridge.wait(std::chrono::milliseconds(20));
      if (island_run.after) island_run.after(bridge, *rule, step);
    }
    if (island_run.finish) {
      rule->finish();
      rule->leave();
    }
    end.own = model.flat().clone();
    if (!rule->global_parameters().empty()) end.global_model = flat(rule->global_parameters()).clone();
    end.interruption = rule->interruption();
  });
  end.error = ended.front();
  return end;
}

// Runs islands as threads; the others know the port of the first.
inline std::vector<IslandResult> run_islands(std::vector<IslandRun> island_runs) {
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

inline void rethrow(const IslandResult& end) {
  if (end.error) std::rethrow_exception(end.error);
}

// Waits until the condition holds; the bridge wakes up when an island comes or goes.
template <typename So>
void until(comm::Bridge& bridge, So so) {
  while (!so()) bridge.wait(std::chrono::milliseconds(20));
}

}  // namespace cairn::sync
