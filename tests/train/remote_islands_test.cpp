// Remote islands: with different layouts, and islands that join later.
#include <atomic>
#include <filesystem>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/net/key.h"
#include "comm/net/listen.h"
#include "ended_models.h"
#include "harness/scratch_folder.h"
#include "small_decoder.h"
#include "train/settings.h"
#include "train/train.h"

namespace cairn::train {
namespace {

using Keys = std::vector<std::string>;

const comm::Key kIslandKey = comm::fresh_key();

// A free port.
int free_port() {
  const comm::Listener listener = comm::listen_at("127.0.0.1");
  ::close(listener.fd);
  return listener.port;
}

struct Island {
  int ranks = 1;
  Keys sets;
  Keys rule = {};  // empty: kRule
};

const Keys kRule{"sync.island.kind=streaming_diloco", "sync.island.every=4", "sync.island.delay=1", "sync.island.fragment_layers=1",
                 "sync.island.timeout_s=30"};

base::Recipe recipe_of(const Keys& first, const Keys& more) {
  // At the default rate Adam amplifies rounding, which differs by processor, to 2.6e-5 in 16 steps.
  Keys sets{"train.steps=16", "snapshot.every=0", "train.global_batch=8", "optim.learning_rate=0.001"};
  sets.insert(sets.end(), first.begin(), first.end());
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

void train_island(int number, int count, int port, const Island& island, const std::filesystem::path& out, const Keys& more = {},
                  bool resume = false, const base::Stop& stop = {}) {
  Keys sets = island.rule.empty() ? kRule : island.rule;
  sets.insert(sets.end(), {"island.number=" + std::to_string(number), "island.count=" + std::to_string(count),
                           "island.meet=127.0.0.1:" + std::to_string(port)});
  sets.insert(sets.end(), island.sets.begin(), island.sets.end());
  const base::Recipe recipe = recipe_of(sets, more);
  for (const std::exception_ptr& error : comm::LocalNetwork(island.ranks).run([&](comm::World& world) {
         run(world, recipe, {.out = out, .resume = resume, .cache = {}, .terminal = nullptr, .remote = {.key = kIslandKey}}, {}, stop);
       }))
    if (error) std::rethrow_exception(error);
}

// Each island in a thread; the first error counts.
void together(const std::vector<std::function<void()>>& islands) {
  std::vector<std::exception_ptr> errors(islands.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < islands.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        islands[i]();
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

TEST(RemoteIslandRuns, WithDifferentLayoutsGiveTheModelOfIslandsInOneWorld) {
  const harness::ScratchFolder scratch;
  const Keys exact{"sync.island.wire=fp32"};
  Keys one_world = kRule;
  one_world.insert(one_world.end(), {"mesh.island=3", "sync.island.wire=fp32"});
  for (const std::exception_ptr& error : comm::LocalNetwork(3).run([&](comm::World& world) {
         run(world, recipe_of(one_world, {}), {.out = scratch.path() / "one", .cache = {}, .terminal = nullptr}, {}, base::Stop());
       }))
    if (error) std::rethrow_exception(error);
  // Of 8 samples the islands have 3, 3 and 2: unequal shares, which are sharded again within an island.
  const std::vector<Island> unlike{{2, {"mesh.dp=2", "memory.zero=2"}}, {1, {}}, {4, {"mesh.tp=2", "mesh.pp=2"}}};
  const int port = free_port();
  std::vector<std::function<void()>> islands;
  for (int i = 0; i < 3; ++i)
    islands.push_back([&, i] { train_island(i, 3, port, unlike[static_cast<size_t>(i)], scratch.path() / std::to_string(i), exact); });
  together(islands);
  const auto expected = model_of(scratch.path() / "one");
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(furthest(model_of(scratch.path() / std::to_string(i)), expected), 2e-5) << i;
    // The anchor is bitwise identical in every layout.
    EXPECT_EQ(furthest(model_of(scratch.path() / std::to_string(i)), model_of(scratch.path() / "0")), 0) << i;
  }
  // Evaluations during the run use the anchor, too.
  const auto judged = base::read_metrics(scratch.path() / "one" / "metrics.jsonl");
  for (int i = 0; i < 3; ++i) {
    const auto rows = base::read_metrics(scratch.path() / std::to_string(i) / "metrics.jsonl");
    ASSERT_EQ(rows.size(), judged.size());
    for (size_t step = 0; step < rows.size(); ++step)
      if (judged[step].has("eval_loss")) {
        EXPECT_NEAR(rows[step].number("eval_loss"), judged[step].number("eval_loss"), 1e-5) << i << " at " << step + 1;
      }
  }
  // The ledger has bytes to other islands under negative numbers. Only rank 0 of an island sends any.
  const base::Json ledger = base::parse_json(base::read_file(scratch.path() / "0" / "ledger.json", 1 << 20));
  double remote = 0;
  for (const base::Json& pair : ledger["pairs"])
    if (pair["to"].get<int>() < 0) {
      EXPECT_EQ(pair["from"].get<int>(), 0);
      remote += pair["bytes"].get<double>();
    }
  EXPECT_GT(remote, 0);
}

const std::vector<Keys> kOtherRules{
    {"sync.island.kind=noloco", "sync.island.every=4", "sync.island.final=one"},
    {"sync.island.kind=noloco", "sync.island.every=4"},
    {"sync.island.kind=gossip", "sync.island.every=4", "sync.island.neighbours=1", "sync.island.final=none"},
    {"sync.island.kind=co2", "sync.island.every=4"}};

TEST(RemoteIslandRuns, OtherRulesWithDifferentLayoutsGiveTheModelsOfIslandsInOneWorld) {
  for (const Keys& rule : kOtherRules) {
    const harness::ScratchFolder scratch;
    Keys one_world = rule;
    one_world.emplace_back("mesh.island=3");
    for (const std::exception_ptr& error : comm::LocalNetwork(3).run([&](comm::World& world) {
           run(world, recipe_of(one_world, {}), {.out = scratch.path() / "one", .cache = {}, .terminal = nullptr}, {}, base::Stop());
         }))
      if (error) std::rethrow_exception(error);
    const std::vector<Island> unlike{
        {2, {"mesh.dp=2", "memory.zero=2"}, rule}, {1, {}, rule}, {4, {"mesh.tp=2", "mesh.pp=2", "pipeline.routing=fixed"}, rule}};
    const int port = free_port();
    std::vector<std::function<void()>> islands;
    for (int i = 0; i < 3; ++i)
      islands.push_back([&, i] { train_island(i, 3, port, unlike[static_cast<size_t>(i)], scratch.path() / std::to_string(i)); });
    together(islands);
    for (int i = 0; i < 3; ++i) {
      const std::filesystem::path one = i == 0 ? scratch.path() / "one" : scratch.path() / "one" / fmt::format("island-{}", i);
      EXPECT_LT(furthest(model_of(scratch.path() / std::to_string(i)), model_of(one)), 2e-5) << rule[0] << " " << i;
    }
    // CO2 has one model, and it is bitwise identical in every layout: the norms of its staleness gap are too.
    if (rule[0] != "sync.island.kind=co2") continue;
    for (int i = 1; i < 3; ++i) EXPECT_EQ(furthest(model_of(scratch.path() / std::to_string(i)), model_of(scratch.path() / "0")), 0) << i;
  }
}

TEST(RemoteIslandRuns, IslandsOfOtherRulesThatAreKilledTogetherGoOnEachWithItsOwnState) {
  for (const Keys& rule : kOtherRules) {
    const harness::ScratchFolder scratch;
    const auto train_both = [&](const std::string& name, bool resume) {
      const int port = free_port();
      std::vector<std::function<void()>> islands;
      for (int i = 0; i < 2; ++i)
        islands.push_back([&, i] {
          train_island(i, 2, port, {1, {}, rule}, scratch.path() / (name + std::to_string(i)), {"snapshot.every=4"}, resume);
        });
      together(islands);
    };
    train_both("straight", false);
    train_both("cut", false);
    for (const char* island : {"cut0", "cut1"})
      for (const char* step : {"step-00000016", "step-00000012"})
        ASSERT_GT(std::filesystem::remove_all(scratch.path() / island / "snapshots" / step), 0U);
    train_both("cut", true);
    for (const char* island : {"0", "1"})
      EXPECT_EQ(
          furthest(model_of(scratch.path() / (std::string("straight") + island)), model_of(scratch.path() / (std::string("cut") + island))),
          0)
          << rule[0] << " " << island;
  }
}

TEST(RemoteIslandRuns, StoppedIslandsGoOnTogetherFromWhereTheFurthestWas) {
  const harness::ScratchFolder scratch;
  int port = free_port();
  const Keys saved{"snapshot.every=4"};
  const auto train_to = [&](const Keys& more, bool resume) {
    port = free_port();
    together({[&] {
                train_island(0, 2, port, {2, {"mesh.dp=2"}}, scratch.path() / "a", more, resume);
              },
              [&] {
                train_island(1, 2, port, {1, {}}, scratch.path() / "b", more, resume);
              }});
  };
  train_to(saved, false);
  // As if island 1 had been killed before its last snapshots, and both were started again.
  for (const char* step : {"step-00000016", "step-00000012"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch.path() / "b"))
      if (entry.path().filename() == step) {
        std::filesystem::remove_all(entry.path());
        break;
      }
  train_to({"snapshot.every=4", "train.steps=24"}, true);
  EXPECT_EQ(furthest(model_of(scratch.path() / "a"), model_of(scratch.path() / "b")), 0);
  EXPECT_EQ(base::read_metrics(scratch.path() / "a" / "metrics.jsonl").back().integer("step"), 24);
  EXPECT_EQ(base::read_metrics(scratch.path() / "b" / "metrics.jsonl").back().integer("step"), 24);
  for (const char* island : {"a", "b"})
    EXPECT_EQ(base::read_file(scratch.path() / island / "incarnation", 64), "2\n") << "its second start";
}

TEST(RemoteIslandRuns, WhatCannotBeIsRefused) {
  const auto refusal = [](const Keys& sets) -> std::string {
    try {
      check_recipe(recipe_of(sets, {}), 1);
    } catch (const Error& error) {
      return error.sentence();
    }
    return "";
  };
  const Keys whole{"island.number=1", "island.count=2", "island.meet=127.0.0.1:1", "sync.island.kind=diloco", "sync.island.every=4"};
  const auto with = [&](const std::string& set) {
    Keys sets = whole;
    sets.push_back(set);
    return refusal(sets);
  };
  EXPECT_EQ(refusal(whole), "");
  EXPECT_NE(with("island.number=2").find("numbered from 0"), std::string::npos) << with("island.number=2");
  EXPECT_NE(with("mesh.island=2").find("mesh.island"), std::string::npos);
  EXPECT_NE(with("island.meet=").find("--meet"), std::string::npos);
  EXPECT_NE(with("island.founders=3").find("founders"), std::string::npos);
  EXPECT_NE(refusal({"island.count=2"}).find("island.number"), std::string::npos);
  EXPECT_NE(refusal({"island.number=0", "island.count=2", "island.meet=127.0.0.1:1", "sync.island.kind=all_reduce"}).find("need diloco"),
            std::string::npos);
}

}  // namespace
}  // namespace cairn::train
