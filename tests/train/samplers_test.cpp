// Samplers in training: the same samples in every layout, losses of single samples, epochs, snapshots, rollbacks and replays.
#include <cmath>
#include <filesystem>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "refusal.h"
#include "small_decoder.h"
#include "snapshot/folder.h"
#include "snapshot/snapshot.h"
#include "train/build.h"
#include "train/replay.h"
#include "train/take_step.h"
#include "train_on.h"
#include "tuning.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

struct SamplerLayout {
  std::string name;
  int ranks = 1;
  Sets sets = {};
};

const std::vector<SamplerLayout>& sampler_layouts() {
  static const std::vector<SamplerLayout> all{{"one", 1},
                                              {"dp2", 2, {"train.micro_batch=2"}},
                                              {"dp4_zero3", 4, {"memory.zero=3"}},
                                              {"pp2_dp2", 4, {"mesh.pp=2", "pipeline.micro_batches=2"}},
                                              {"zbv", 2, {"mesh.pp=2", "pipeline.schedule=zbv"}},
                                              {"tp2", 2, {"mesh.tp=2"}},
                                              {"cp2", 2, {"mesh.cp=2"}}};
  return all;
}

// A small decoder on little text: about 260 samples.
base::Recipe text_recipe(const Sets& sets) {
  base::Recipe recipe = small_decoder("llama", {"model.layers=2", "data.stories_bytes=3000", "train.global_batch=8", "train.steps=0",
                                                "eval.every=0", "eval.samples=1", "optim.warmup_steps=2"});
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

// A classifier of points: 2,700 samples in batches of 90, 30 steps in a full epoch.
base::Recipe points_recipe(const Sets& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {kind = "classifier", embed = 16, layers = 1}
    data = {kind = "spirals"}
    train = {steps = 0, global_batch = 90, epochs = 4}
    optim = {learning_rate = 0.02, warmup_steps = 0}
    sampler = {groups = 5, window = 0.6}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 0, fraction = 0.1, samples = 30}
    snapshot = {every = 0}
  )",
                                            "points.toml");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

std::vector<std::string> samples_of(const std::filesystem::path& run) {
  std::vector<std::string> samples;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl"))
    for (const auto& [name, value] : row.values)
      if (name == "samples") samples.push_back(std::get<std::string>(value));
  return samples;
}

void drop_snapshots_above(const std::filesystem::path& run, int64_t step) {
  for (const auto& entry : std::filesystem::directory_iterator(run / "snapshots"))
    if (std::stoll(entry.path().filename().string().substr(5)) > step) std::filesystem::remove_all(entry.path());
}

at::Tensor saved_scores(const std::filesystem::path& run, int64_t step) {
  return snapshot::open(snapshot::step_folder(run, step)).tensor("sampler", "scores").clone();
}

TEST(Samplers, DrawTheSameSamplesInEveryLayout) {
  const harness::ScratchFolder scratch;
  std::vector<std::string> expected;
  for (const SamplerLayout& layout : sampler_layouts()) {
    const Sets sets = Sets{"data.sampler=rs2", "sampler.ratio=0.2", "train.epochs=3"} + layout.sets;
    train_on(layout.ranks, text_recipe(sets), scratch / layout.name);
    const std::vector<std::string> samples = samples_of(scratch / layout.name);
    EXPECT_GT(samples.size(), 6u);
    if (expected.empty()) expected = samples;
    EXPECT_EQ(samples, expected) << layout.name;
  }
}

TEST(Samplers, DrawTheSameSamplesOfEveryPackingOnOneRankAndTwo) {
  const harness::ScratchFolder scratch;
  for (const std::string packing : {"stream", "separate", "documents", "none"}) {
    const Sets sets{"data.sampler=rs2", "sampler.ratio=0.3", "train.epochs=2", "data.packing=" + packing};
    train_on(1, text_recipe(sets), scratch / (packing + "1"));
    train_on(2, text_recipe(sets), scratch / (packing + "2"));
    const std::vector<std::string> samples = samples_of(scratch / (packing + "1"));
    EXPECT_GT(samples.size(), 2u) << packing;
    EXPECT_EQ(samples, samples_of(scratch / (packing + "2"))) << packing;
  }
}

TEST(Samplers, Rs2GoesOnInAnotherLayout) {
  const harness::ScratchFolder scratch;
  const Sets sets{"data.sampler=rs2", "sampler.ratio=0.2", "train.epochs=3", "snapshot.every=5", "snapshot.keep=9"};
  train_on(1, text_recipe(sets), scratch / "run");
  const std::vector<std::string> expected = samples_of(scratch / "run");
  drop_snapshots_above(scratch / "run", 5);
  train_on(4, text_recipe(sets + Sets{"mesh.pp=2"}), scratch / "run", /*resume=*/true);
  EXPECT_EQ(samples_of(scratch / "run"), expected);
}

// Losses come back from every layout: by token, summed along cp, from the last stage, once along tp.
TEST(Samplers, ScoresAreThoseOfOneRankInEveryLayout) {
  const harness::ScratchFolder scratch;
  at::Tensor expected;
  for (const SamplerLayout& layout : sampler_layouts()) {
    const Sets sets = Sets{"data.sampler=seta", "sampler.flush_steps=3", "sampler.groups=3",         "train.epochs=3",
                           "snapshot.every=10", "snapshot.keep=99",      "optim.learning_rate=0.001"} +
                      layout.sets;
    train_on(layout.ranks, text_recipe(sets), scratch / layout.name);
    const at::Tensor scores = saved_scores(scratch / layout.name, 10);
    EXPECT_EQ(scores.isfinite().sum().item<int64_t>(), 80);
    if (!expected.defined()) expected = scores;
    EXPECT_TRUE(at::allclose(scores, expected, 1e-4, 1e-4, /*equal_nan=*/true)) << layout.name;
  }
}

// From one snapshot within an epoch, with the scores of its beginning, all layouts draw the rest of it alike.
TEST(Samplers, ScoredEpochsGoOnAlikeInEveryLayout) {
  const harness::ScratchFolder scratch;
  for (const std::string name : {"seta", "infobatch"}) {
    const Sets sets{"data.sampler=" + name, "sampler.groups=3", "train.epochs=3", "snapshot.every=5", "snapshot.keep=99"};
    const std::filesystem::path whole = scratch / (name + "-whole");
    train_on(1, text_recipe(sets), whole);
    int64_t second = 0, third = 0;
    for (const base::MetricsRow& row : base::read_metrics(whole / "metrics.jsonl")) {
      if (!row.has("sampler_epoch")) continue;
      if (row.number("sampler_epoch") == 1) second = row.integer("step");
      if (row.number("sampler_epoch") == 2) third = row.integer("step");
    }
    ASSERT_GT(third, second + 6) << name;
    const int64_t stop = (second / 5 + 1) * 5;  // a snapshot within the second epoch
    std::vector<std::string> expected = samples_of(whole);
    expected.resize(static_cast<size_t>(third - 1));
    for (const SamplerLayout& layout : sampler_layouts()) {
      const std::filesystem::path run = scratch / (name + layout.name);
      std::filesystem::copy(whole, run, std::filesystem::copy_options::recursive);
      drop_snapshots_above(run, stop);
      train_on(layout.ranks, text_recipe(sets + layout.sets), run, /*resume=*/true);
      std::vector<std::string> samples = samples_of(run);
      samples.resize(expected.size());
      EXPECT_EQ(samples, expected) << name << ", " << layout.name;
    }
  }
}

TEST(Samplers, ScoredEpochsGoOnBitForBitFromAnySnapshot) {
  const harness::ScratchFolder scratch;
  for (const std::string name : {"seta", "infobatch"})
    for (const int ranks : {1, 2}) {
      const std::filesystem::path run = scratch / (name + std::to_string(ranks));
      const base::Recipe recipe = points_recipe({"data.sampler=" + name, "snapshot.every=10", "snapshot.keep=99", "sampler.flush_steps=7"});
      const std::vector<double> whole = losses_on(ranks, recipe, run);
      EXPECT_LT(whole.size(), 4u * 30u) << name;
      for (const int64_t step : {30, 40, 10}) {  // at the end of an epoch, and within
        drop_snapshots_above(run, step);
        EXPECT_EQ(losses_on(ranks, recipe, run, /*resume=*/true), whole) << name << " from step " << step;
      }
    }
}

TEST(Samplers, EpochsEndTheRun) {
  const harness::ScratchFolder scratch;
  train_on(1, points_recipe({"train.epochs=1.5"}), scratch / "shuffled");
  const std::vector<double> rates = numbers_of(scratch / "shuffled", "lr");
  EXPECT_EQ(rates.size(), 45u);
  EXPECT_NEAR(rates.back(), 0.02 * 0.02, 1e-9);  // the cosine ends with the run: optim.min_lr_ratio
  train_on(1, points_recipe({"data.sampler=seta"}), scratch / "seta");
  const std::vector<double> fewer = numbers_of(scratch / "seta", "lr");
  EXPECT_LT(fewer.size(), 120u);
  EXPECT_NEAR(fewer.back(), 0.02 * 0.02, 1e-9);
  EXPECT_NEAR(fewer[29], rates.size() == 45 ? 0.02 * (0.02 + 0.98 * (1 + std::cos(M_PI / 4)) / 2) : 0, 1e-6);  // a quarter of the epochs
}

// The default of 120 steps would be longer than the run.
TEST(Samplers, WarmUpFitsARunOfEpochs) {
  const harness::ScratchFolder scratch;
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {kind = "classifier", embed = 8, layers = 1}
    data = {kind = "spirals"}
    train = {global_batch = 90, epochs = 1}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 0, fraction = 0.1, samples = 30}
    optim = {schedule = "constant", learning_rate = 0.01}
  )",
                                            "warm.toml");
  train_on(1, recipe, scratch / "run");
  const std::vector<double> rates = numbers_of(scratch / "run", "lr");
  ASSERT_EQ(rates.size(), 30u);
  EXPECT_NEAR(rates[5], 0.01 * 6 / 12, 1e-9);  // two fifths of 30 steps
  EXPECT_EQ(rates[11], 0.01);
}

TEST(Samplers, SayWhatAnEpochHas) {
  const harness::ScratchFolder scratch;
  train_on(2, points_recipe({"data.sampler=seta", "sampler.prune=0.1"}), scratch / "run");
  std::vector<double> kept = numbers_of(scratch / "run", "sampler_kept_share");
  ASSERT_EQ(kept.size(), 4u);
  EXPECT_NEAR(kept[0], 0.9, 0.04);
  for (const size_t windowed : {1, 2, 3}) EXPECT_LT(kept[windowed], 0.86);
  EXPECT_EQ(numbers_of(scratch / "run", "sampler_window_first"), (std::vector<double>{1, 2, 0}));
  EXPECT_EQ(numbers_of(scratch / "run", "sampler_group_4_size").size(), 3u);
  EXPECT_EQ(numbers_of(scratch / "run", "sampler_seconds").size(), 4u);
}

TEST(Samplers, AreReplayedFromASnapshotWithinAnEpoch) {
  const harness::ScratchFolder scratch;
  train_on(2, points_recipe({"data.sampler=infobatch", "snapshot.every=20", "snapshot.keep=1", "snapshot.last=false"}), scratch / "run");
  const auto steps = static_cast<int64_t>(samples_of(scratch / "run").size());
  const StepOfRecord record = read_step_of_record(scratch / "run", steps);
  harness::on_ranks(2, [&](comm::World& world) {
    const Replayed result = replay(world, record, {}, {});
    EXPECT_TRUE(result.equal()) << result.loss_then << " and " << result.loss_now;
    EXPECT_TRUE(result.same_samples);
    EXPECT_GT(result.from, 0);
  });
}

// A sample with an enormous weight is bad whenever it comes. Batches that a rollback passes over do not come again: the run is shorter.
TEST(Samplers, FollowSkippedStepsAndRollbacks) {
  const harness::ScratchFolder scratch;
  std::vector<int64_t> ids(540);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> weights(ids.size(), 1.0f);
  weights[27] = 3e38f;
  const data::Subset subset = data::Subset::of(ids, weights);
  for (const std::string policy : {"skip", "rollback"}) {
    std::vector<double> whole;
    for (const bool resume : {false, true}) {
      const std::filesystem::path out = scratch / policy;
      if (resume) drop_snapshots_above(out, 12);
      harness::on_ranks(2, [&](comm::World& world) {
        Start start;
        start.out = out;
        start.resume = resume;
        run(world,
            points_recipe(
                {"data.sampler=seta", "train.global_batch=30", "train.on_bad_step=" + policy, "snapshot.every=4", "snapshot.keep=99"}),
            start, subset, base::Stop());
      });
      const std::vector<double> losses = numbers_of(out, "loss");
      EXPECT_GT(numbers_of(out, "sampler_epoch").size(), 2u);
      if (resume) {
        ASSERT_EQ(losses.size(), whole.size());
        for (size_t i = 0; i < losses.size(); ++i)
          EXPECT_TRUE(losses[i] == whole[i] || !std::isfinite(whole[i])) << policy << ", step " << i + 1;
      }
      whole = losses;
    }
  }
}

TEST(Samplers, EndTheRunWhereRanksWouldDrawDifferentSamples) {
  const harness::Run ended = harness::on_ranks(2, {.expect_errors = true}, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, points_recipe({"data.sampler=seta", "sampler.flush_steps=1"}), {}, {});
    for (int64_t step = 1; step <= 31; ++step) {
      if (step == 30 && world.rank() == 1) job->sampler->feedback({{5, 6, 7}, {100, 200, 300}});
      take_step(*job);
      job->progress.steps_done = step;
    }
  });
  EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::diverged);
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("data.sampler = seta: ranks would draw different samples after step 30"));
}

TEST(Samplers, TuneAdaptersOnTheSameChatsInEveryLayout) {
  const harness::ScratchFolder scratch;
  const std::string base = make_base_model(scratch / "base");
  std::string chats;
  for (int i = 0; i < 24; ++i) chats += fmt::format("{{\"instruction\": \"Say {}\", \"output\": \"It is {}\"}}\n", i, i * i);
  const Sets sets{"model.from=" + base,   "data.path=" + scratch.file("chats.jsonl", chats).string(),
                  "model.lora.rank=2",    "data.packing=none",
                  "train.global_batch=4", "train.steps=0",
                  "train.epochs=3",       "data.sampler=rs2",
                  "sampler.ratio=0.5",    "optim.learning_rate=0.1"};
  std::vector<std::string> expected;
  for (const auto& [name, ranks, more] : {std::tuple("one", 1, Sets{}), std::tuple("dp2", 2, Sets{}),
                                          std::tuple("tp2", 2, Sets{"mesh.tp=2"}), std::tuple("pp2", 4, Sets{"mesh.pp=2"})}) {
    tune(scratch / name, sets + more, {.ranks = ranks});
    if (expected.empty()) expected = samples_of(scratch / name);
    EXPECT_EQ(samples_of(scratch / name), expected) << name;
  }
  EXPECT_EQ(expected.size(), 9u);
}

TEST(Samplers, RefuseStepsWithoutLossesOfSamples) {
  const auto refused = [](const Sets& sets) { return refusal_of(points_recipe(sets)); };
  EXPECT_THAT(refused({"data.sampler=seta", "train.epochs=0", "train.steps=9"}),
              HasSubstr("data.sampler = seta: its epochs differ in length, so steps cannot end the run. Set train.epochs instead"));
  EXPECT_THAT(refused({"train.steps=9"}), HasSubstr("train.steps = 9: train.epochs = 4 decides when the run ends"));
  EXPECT_THAT(refused({"train.epochs=0"}), HasSubstr("train.steps = 0: the run would have no step"));
  EXPECT_THAT(refused({"data.sampler=seta", "train.method=one_byte"}),
              HasSubstr("data.sampler = seta: does not work with train.method = one_byte: the method keeps no losses of single samples"));
  EXPECT_THAT(refused({"data.sampler=infobatch", "train.method=coded"}), HasSubstr("does not work with train.method = coded"));
  EXPECT_THAT(refusal_of(text_recipe({"data.sampler=seta", "train.epochs=3", "train.cuda_graph=true"})),
              HasSubstr("data.sampler = seta: does not work with train.cuda_graph = true"));
  EXPECT_THAT(refusal_of(text_recipe(
                  {"data.sampler=seta", "train.epochs=3", "data.packing=sequences", "context.plan=flexsp", "context.tokens_per_rank=64"})),
              HasSubstr("data.sampler = seta: does not work with context.plan = flexsp"));
  EXPECT_THAT(refused({"data.sampler=rs2", "sampler.ratio=0.01"}),
              HasSubstr("a round of 27 samples is smaller than train.global_batch = 90"));
}

TEST(Samplers, RefuseASnapshotOfAnotherSampler) {
  const harness::ScratchFolder scratch;
  train_on(1, points_recipe({"snapshot.every=30"}), scratch / "run");
  const auto resumed = [&](const Sets& sets) -> std::string {
    try {
      train_on(1, points_recipe(sets), scratch / "run", /*resume=*/true);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(resumed({"data.sampler=seta"}), HasSubstr("was trained with another sampler"));
  EXPECT_THAT(resumed({"train.epochs=2"}), HasSubstr("is already at step 120, beyond their end"));
}

}  // namespace
}  // namespace cairn::train
