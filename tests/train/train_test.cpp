#include "train/train.h"

#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"

namespace cairn::train {
namespace {

// Small enough for a fraction of a second; 5 samples a step, which 2, 3 and 4 ranks do not divide.
base::Recipe tiny(int64_t steps, const std::string& more = "") {
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {layers = 2, embed = 16, heads = 2, kv_heads = 1, mlp = 24}
    data = {vocab = 260, length = 12, stories_bytes = 20000}
    optim = {warmup_steps = 2}
    snapshot = {every = 4}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 5, samples = 7}
  )",
                                            "tiny.toml");
  recipe.set("train.global_batch", int64_t{5}, "test");
  recipe.set("train.steps", steps, "test");
  if (!more.empty()) recipe.set(more);
  return recipe;
}

std::vector<double> losses_of(const std::filesystem::path& run, const std::string& name = "loss") {
  std::vector<double> losses;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl"))
    if (row.has(name)) losses.push_back(row.number(name));
  return losses;
}

struct Options {
  harness::On on = harness::On::local;
  bool resume = false;
  std::string more = "";
  data::Subset subset = {};
};

std::vector<double> train_tiny(int ranks, int64_t steps, const std::filesystem::path& out, Options options = {}) {
  const base::Stop never;
  harness::on_ranks(ranks, {.on = options.on}, [&](comm::World& world) {
    Start start;
    start.out = out;
    start.resume = options.resume;
    run(world, tiny(steps, options.more), start, options.subset, never);
  });
  return losses_of(out);
}

TEST(Train, TrainsOnTheSubsetItIsGivenWithItsWeights) {
  const harness::ScratchFolder scratch;
  const auto losses = [&](const char* name, data::Subset subset) { return train_tiny(2, 4, scratch / name, {.subset = std::move(subset)}); };
  const std::vector<double> all = losses("all", {}), run = losses("run", {1, 3}), same = losses("same", data::Subset::of({1, 2, 3}));
  const std::vector<double> doubled = losses("doubled", data::Subset::of({1, 2, 3}, {2, 2, 2}));
  EXPECT_EQ(run, same);
  EXPECT_NE(run, all);
  EXPECT_NEAR(doubled[0], 2 * run[0], 1e-5 * run[0]);
  try {
    train_tiny(2, 6, scratch / "run", {.resume = true, .subset = {2, 3}});
    ADD_FAILURE() << "resumed on other samples";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("was trained on other samples"));
  }
}

TEST(Train, GivesTheSameLossesOnAnyNumberOfRanksAndAnyTransport) {
  const harness::ScratchFolder scratch;
  const std::vector<double> one = train_tiny(1, 10, scratch / "one");
  ASSERT_EQ(one.size(), 10u);
  EXPECT_NEAR(one[0], std::log(260), 0.1);
  EXPECT_LT(one[9], one[0] - 0.1);
  for (const harness::On on : {harness::On::local, harness::On::net})
    for (int ranks : {2, 3, 4, 6}) {  // 6: one rank has no sample at all
      const std::filesystem::path out = scratch / (std::to_string(ranks) + (on == harness::On::net ? "net" : "local"));
      const std::vector<double> many = train_tiny(ranks, 10, out, {.on = on});
      ASSERT_EQ(many.size(), 10u);
      for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(many[i], one[i], 1e-5) << ranks << " ranks, step " << i + 1;
      EXPECT_NEAR(losses_of(out, "eval_loss")[0], losses_of(scratch / "one", "eval_loss")[0], 1e-5);
    }
}

TEST(Train, DoesNotDependOnTheMicroBatch) {
  const harness::ScratchFolder scratch;
  const std::vector<double> whole = train_tiny(1, 6, scratch / "whole"),
                            parts = train_tiny(1, 6, scratch / "parts", {.more = "train.micro_batch=2"});
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(parts[i], whole[i], 1e-6) << "step " << i + 1;
}

TEST(Train, ContinuesBitForBitOnTheSameRanks) {
  const harness::ScratchFolder scratch;
  for (int ranks : {1, 2}) {
    const std::filesystem::path whole = scratch / ("whole" + std::to_string(ranks)), parts = scratch / ("parts" + std::to_string(ranks));
    const std::vector<double> expected = train_tiny(ranks, 10, whole);
    // A run whose later snapshots are gone is what a kill after step 4 leaves: metrics reach further than the state.
    std::filesystem::copy(whole, parts, std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(parts / "snapshots" / "step-00000008");
    std::filesystem::remove_all(parts / "snapshots" / "step-00000010");
    EXPECT_EQ(train_tiny(ranks, 10, parts, {.resume = true}), expected);
  }
}

TEST(Train, ContinuesOnAnotherNumberOfRanks) {
  const harness::ScratchFolder scratch;
  const std::vector<double> expected = train_tiny(1, 14, scratch / "whole");
  std::filesystem::copy(scratch / "whole", scratch / "parts", std::filesystem::copy_options::recursive);
  for (const char* late : {"step-00000008", "step-00000012", "step-00000014"})
    std::filesystem::remove_all(scratch / "parts" / "snapshots" / late);
  const std::vector<double> resumed = train_tiny(3, 14, scratch / "parts", {.resume = true});
  ASSERT_EQ(resumed.size(), 14u);
  for (size_t i = 4; i < 14; ++i) EXPECT_NEAR(resumed[i], expected[i], 1e-6) << "step " << i + 1;
}

TEST(Train, SavesAndStopsOnAllRanksWhenOneIsAsked) {
  const harness::ScratchFolder scratch;
  base::Stop asked;
  asked.request();
  const base::Stop never;
  harness::on_ranks(3, [&](comm::World& world) {
    Start start;
    start.out = scratch / "run";
    start.stop = &never;  // it is asked once it trains
    const Result result = run(world, tiny(10), start, {}, world.rank() == 2 ? asked : never);
    EXPECT_TRUE(result.stopped);
    EXPECT_EQ(result.step, 1);
  });
  EXPECT_TRUE(std::filesystem::exists(scratch / "run" / "snapshots" / "step-00000001" / "manifest.json"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "run" / "report.html"));
}

TEST(Train, TheEndIsNotSavedWhereNobodyAsksForIt) {
  const harness::ScratchFolder scratch;
  const base::Stop never;
  harness::on_ranks(1, [&](comm::World& world) {
    base::Recipe recipe = tiny(6);
    recipe.set("snapshot.last=false");
    Start start;
    start.out = scratch / "run";
    run(world, recipe, start, {}, never);
  });
  EXPECT_TRUE(std::filesystem::exists(scratch / "run" / "snapshots" / "step-00000004"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "run" / "snapshots" / "step-00000006"));
  const base::MetricsRow first = base::read_metrics(scratch / "run" / "metrics.jsonl").front();
  EXPECT_LE(first.number("startup_data_seconds") + first.number("startup_model_seconds"), first.number("startup_seconds"));
}

TEST(Train, StopsWithAClearErrorWhenTheLossIsNoLongerANumber) {
  const harness::ScratchFolder scratch;
  const base::Stop never;
  const harness::Run ended = harness::on_ranks(2, {.expect_errors = true}, [&](comm::World& world) {
    Start start;
    start.out = scratch / "run";
    run(world, tiny(10, "optim.learning_rate=1e30"), start, {}, never);
  });
  EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::diverged);
  EXPECT_NE(std::string(ended.error_on(0).what()).find("lower optim.learning_rate"), std::string::npos) << ended.error_on(0).what();
}

TEST(Train, TrainsAClassifierThroughTheSameLoop) {
  const harness::ScratchFolder scratch;
  const auto spirals = [](int64_t steps) {
    base::Recipe recipe = base::Recipe::parse(R"(
      model = {kind = "classifier", embed = 64, layers = 2}
      data = {kind = "spirals"}
      optim = {learning_rate = 0.02, weight_decay = 0.0, warmup_steps = 20}
      log = {tensorboard = false, trace = false}
      train = {global_batch = 100}
      eval = {fraction = 0.1, samples = 300}
    )",
                                              "spirals.toml");
    recipe.set("train.steps", steps, "test");
    return recipe;
  };
  const base::Stop never;
  std::vector<double> curves[2];
  for (int ranks : {1, 3}) {
    const std::filesystem::path out = scratch / std::to_string(ranks);
    harness::on_ranks(ranks, [&](comm::World& world) {
      Start start;
      start.out = out;
      run(world, spirals(500), start, {}, never);
    });
    curves[ranks == 3] = losses_of(out);
    EXPECT_LT(losses_of(out, "eval_loss").back(), std::log(3) / 3);  // a third of what guessing costs: the spirals are told apart
  }
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(curves[0][i], curves[1][i], 1e-5);
}

TEST(Train, RefusesATextModelOnLabelledPoints) {
  const base::Stop never;
  const harness::Run ended = harness::on_ranks(1, {.expect_errors = true},
                                               [&](comm::World& world) { run(world, tiny(1, "data.kind=\"spirals\""), {}, {}, never); });
  EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::bad_input);
}

}  // namespace
}  // namespace cairn::train
