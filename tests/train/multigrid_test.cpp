// Training whose clips change shape from step to step: the same losses on any number of ranks, resumed runs that go on where they were, and
// refusals.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "data/samples/multigrid_schedule.h"
#include "harness/scratch_folder.h"
#include "train/refusal.h"
#include "train/train_on.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

// 34 steps: epochs of 3, 3, 3, 6, 6 and 13.
base::Recipe multigrid(const std::vector<std::string>& sets = {}) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    kind = "cnn3d"
    layers = 3
    embed = 4
    [data]
    kind = "clips"
    sampler = "multigrid"
    [clips]
    frames = 16
    size = 16
    classes = 4
    count = 260
    held_out = 24
    [sampler]
    precise_norm_batches = 3
    [train]
    epochs = 4
    global_batch = 8
    [optim]
    kind = "sgd"
    learning_rate = 0.01
    schedule = "constant"
    warmup_steps = 0
    [log]
    tensorboard = false
    trace = false
    [snapshot]
    every = 0
    [eval]
    every = 0
  )",
                                            "clips");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

std::vector<double> column(const std::filesystem::path& out, const std::string& name) {
  std::vector<double> values;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl"))
    if (row.has(name)) values.push_back(row.number(name));
  return values;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double bound) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], bound * std::max(1.0, std::abs(expected[i]))) << i;
}

TEST(Multigrid, TrainsOnShapesInTheirCycles) {
  const harness::ScratchFolder scratch;
  train_on(1, multigrid(), scratch / "run");
  const std::vector<double> frames = column(scratch / "run", "frames"), size = column(scratch / "run", "size"),
                            clips = column(scratch / "run", "clips"), rate = column(scratch / "run", "lr");
  ASSERT_EQ(frames.size(), 34u);
  EXPECT_EQ(std::vector<double>(size.begin(), size.begin() + 3), (std::vector<double>{8, 11, 11}));
  EXPECT_EQ(std::vector<double>(clips.begin(), clips.begin() + 3), (std::vector<double>{128, 64, 64}));
  EXPECT_EQ(frames[0], 4);
  EXPECT_EQ(frames[33], 16);
  EXPECT_EQ(size[33], 8);  // the 13th batch of the last epoch begins a cycle
  EXPECT_NEAR(rate[0], 0.08, 1e-12);
  EXPECT_NEAR(rate[33], 0.01, 1e-12);
  EXPECT_EQ(column(scratch / "run", "eval_accuracy").size(), 5u);  // twice in the three epochs of the first shape
}

TEST(Multigrid, WarmsUpToTheRateAtItsEnd) {
  const harness::ScratchFolder scratch;
  // 105 steps: epochs of 3, 3, 3, 6, 6, 6, 13, 13, ...; the warm-up ends within the fourth of twelve, in the second shape.
  train_on(1, multigrid({"train.epochs=8", "sampler.stages=[3]", "optim.warmup_steps=32"}), scratch / "run");
  const std::vector<double> rate = column(scratch / "run", "lr");
  ASSERT_EQ(rate.size(), 105u);
  for (size_t i = 1; i < 12; ++i) EXPECT_GT(rate[i], rate[i - 1]) << i;
  EXPECT_NEAR(rate[2], 0.01 * 4 / 12 / (32.0 / 105),
              1e-6);  // after one epoch: to the factor 4 of the second shape, not to the 8 of the first
  EXPECT_NEAR(rate[8], 3 * rate[2], 1e-6);
}

TEST(Multigrid, GivesTheSameLossesOnAnyNumberOfRanks) {
  const harness::ScratchFolder scratch;
  const std::vector<double> alone = losses_on(1, multigrid(), scratch / "1");
  expect_near(losses_on(2, multigrid(), scratch / "2"), alone, 1e-5);
  expect_near(losses_on(4, multigrid(), scratch / "4"), alone, 1e-5);
  expect_near(losses_on(4, multigrid({"memory.zero=3"}), scratch / "zero"), alone, 1e-5);
  expect_near(column(scratch / "4", "eval_loss"), column(scratch / "1", "eval_loss"), 1e-5);
  // Groups of another size are another function.
  const std::vector<double> other = losses_on(1, multigrid({"sampler.norm_samples=4"}), scratch / "other");
  EXPECT_GT(std::abs(other[0] - alone[0]), 1e-4);
}

TEST(Multigrid, CutsBatchesIntoMicroBatchesOfWholeGroups) {
  const harness::ScratchFolder scratch;
  const std::vector<double> whole = losses_on(1, multigrid(), scratch / "whole");
  expect_near(losses_on(1, multigrid({"train.micro_batch=8"}), scratch / "parts"), whole, 1e-5);
}

TEST(Multigrid, ResumesInTheMiddleOfAShapeAndOfACycle) {
  const harness::ScratchFolder scratch;
  const base::Recipe recipe = multigrid({"snapshot.every=1", "snapshot.keep=100"});
  const std::vector<double> whole = losses_on(1, recipe, scratch / "whole");
  const std::vector<double> accuracy = column(scratch / "whole", "eval_loss");
  for (const int64_t step : {4, 14, 26}) {  // in the middle of a shape, and after the first, second and first batch of a cycle
    const std::filesystem::path out = scratch / std::to_string(step);
    std::filesystem::copy(scratch / "whole", out, std::filesystem::copy_options::recursive);
    for (const auto& entry : std::filesystem::directory_iterator(out / "snapshots"))
      if (entry.path().filename().string() > fmt::format("step-{:08}", step)) std::filesystem::remove_all(entry.path());
    EXPECT_EQ(losses_on(1, recipe, out, /*resume=*/true), whole) << step;
    EXPECT_EQ(column(out, "eval_loss"), accuracy) << step;
  }
}

TEST(Multigrid, EvaluatesWithPreciseStatistics) {
  const harness::ScratchFolder scratch;
  train_on(1, multigrid(), scratch / "precise");
  train_on(1, multigrid({"sampler.precise_norm_batches=0"}), scratch / "running");
  EXPECT_EQ(column(scratch / "precise", "loss"), column(scratch / "running", "loss"));
  EXPECT_NE(column(scratch / "precise", "eval_loss"), column(scratch / "running", "eval_loss"));
}

TEST(Multigrid, RefusesWhatDoesNotFit) {
  const auto refused = [](const std::vector<std::string>& sets) { return refusal_of(multigrid(sets)); };
  EXPECT_THAT(refused({"clips.frames=18"}), HasSubstr("clips.frames = 18"));
  EXPECT_THAT(refused({"clips.frames=8"}), HasSubstr("3 layers leave none of 2 frames"));
  EXPECT_THAT(refused({"train.epochs=1"}), HasSubstr("train.epochs = 1: the schedule"));
  EXPECT_THAT(refused({"train.epochs=0"}), HasSubstr("data.sampler = multigrid"));
  EXPECT_THAT(refused({"optim.kind=adamw"}), HasSubstr("sampler.scale_lr = false, or true"));
  EXPECT_THAT(refused({"sampler.norm_samples=6"}), HasSubstr("sampler.norm_samples = 6"));
  EXPECT_THAT(refused({"train.global_batch=12"}), HasSubstr("sampler.norm_samples = 8"));
  EXPECT_THAT(refused({"train.micro_batch=12"}), HasSubstr("train.micro_batch = 12"));
  EXPECT_THAT(refused({"sampler.stages=[2]", "optim.schedule=cosine"}), HasSubstr("optim.schedule = cosine"));
  EXPECT_THAT(refused({"clips.count=100"}), HasSubstr("in batches of 128, and there are 100"));
  EXPECT_THAT(refused({"clips.flip=true"}), HasSubstr("clips.flip = true"));
  EXPECT_THAT(refused({"model.kind=classifier"}), HasSubstr("does not read clips"));
  EXPECT_THAT(refused({"data.kind=spirals"}), HasSubstr("data.kind = clips"));
}

TEST(Multigrid, TakesAnAdaptiveOptimizerThatIsAskedFor) {
  const harness::ScratchFolder scratch;
  for (const char* scale : {"sampler.scale_lr=true", "sampler.scale_lr=false"})
    EXPECT_EQ(losses_on(1, multigrid({"optim.kind=adamw", scale}), scratch / scale).empty(), false);
}

}  // namespace
}  // namespace cairn::train
