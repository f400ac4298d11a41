// Models of pictures in training: the same losses in any layout, directories that open again, refusals.
#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"
#include "base/metrics.h"
#include "harness/scratch_folder.h"
#include "train/refusal.h"
#include "train/train_on.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

base::Recipe picture_recipe(const std::string& kind, const std::vector<std::string>& sets = {}) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    layers = 3
    embed = 16
    heads = 4
    mlp = 32
    patch = 4
    [model.cnn]
    widths = [8, 16]
    depths = [1, 2]
    expand = 2
    [data]
    kind = "images"
    [images]
    size = 8
    classes = 4
    count = 64
    held_out = 16
    crop = 1
    [train]
    steps = 6
    global_batch = 12
    [optim]
    kind = "sgd"
    momentum = 0.9
    learning_rate = 0.05
    warmup_steps = 0
    [log]
    tensorboard = false
    trace = false
    [snapshot]
    every = 0
    [eval]
    every = 3
  )",
                                            "pictures");
  recipe.set("model.kind=" + kind);
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

std::vector<double> values_of(const std::filesystem::path& out, const std::string& name) {
  std::vector<double> values;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl"))
    if (row.has(name)) values.push_back(row.number(name));
  return values;
}

void expect_losses(const std::vector<double>& found, const std::vector<double>& expected, double bound, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], bound * std::max(1.0, std::abs(expected[i]))) << what << ", step " << i + 1;
}

TEST(PictureModels, GiveTheSameLossesInEveryLayout) {
  const harness::ScratchFolder scratch;
  for (const char* kind : {"vit", "cnn"}) {
    const std::string name = kind;
    const std::vector<double> alone = losses_on(1, picture_recipe(kind), scratch / (name + "1"));
    ASSERT_EQ(alone.size(), 6u);
    EXPECT_LT(alone.back(), alone.front());
    EXPECT_EQ(values_of(scratch / (name + "1"), "eval_accuracy").size(), 2u);
    struct Layout {
      int ranks;
      std::vector<std::string> sets;
      bool splits_norms = false;  // batch norms see fewer samples at a time: another function
    };
    std::vector<Layout> layouts{{1, {"train.micro_batch=3"}, true}, {2, {"mesh.pp=2", "pipeline.micro_batches=1"}},
                                {1, {"recompute.mode=full"}},       {4, {}, true},
                                {4, {"memory.zero=1"}, true},       {4, {"memory.zero=3"}, true}};
    if (name == "vit") {
      layouts.push_back({2, {"mesh.tp=2"}});
      layouts.push_back({2, {"mesh.tp=2", "model.residual=parallel"}});
      layouts.push_back({4, {"mesh.tp=2", "mesh.pp=2"}});
    }
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Layout& layout = layouts[i];
      const bool other_model = std::ranges::any_of(layout.sets, [](const std::string& set) { return set.starts_with("model."); });
      const std::string out = name + "_" + std::to_string(i);
      const std::vector<double> found = losses_on(layout.ranks, picture_recipe(kind, layout.sets), scratch / out);
      if (name == "cnn" && layout.splits_norms) {
        EXPECT_EQ(found.size(), 6u) << out;
        continue;
      }
      if (other_model) {
        expect_losses(found, losses_on(1, picture_recipe(kind, {"model.residual=parallel"}), scratch / (out + "_alone")), 1e-5, out);
        continue;
      }
      expect_losses(found, alone, 1e-5, out);
    }
  }
}

TEST(PictureModels, TrainInHalfPrecision) {
  const harness::ScratchFolder scratch;
  const std::vector<double> alone = losses_on(1, picture_recipe("vit"), scratch / "fp32");
  expect_losses(losses_on(1, picture_recipe("vit", {"train.precision=bf16"}), scratch / "bf16"), alone, 0.02, "bf16");
}

TEST(PictureModels, ResumeBitwise) {
  const harness::ScratchFolder scratch;
  for (const char* kind : {"vit", "cnn"}) {
    const base::Recipe recipe = picture_recipe(kind, {"snapshot.every=2", "snapshot.keep=9"});
    const std::filesystem::path whole = scratch / kind, part = scratch / (std::string(kind) + "_again");
    const std::vector<double> losses = losses_on(1, recipe, whole);
    std::filesystem::copy(whole, part, std::filesystem::copy_options::recursive);
    for (const auto& entry : std::filesystem::directory_iterator(part / "snapshots"))
      if (entry.path().filename().string() > "step-00000002") std::filesystem::remove_all(entry.path());
    EXPECT_EQ(losses_on(1, recipe, part, /*resume=*/true), losses) << kind;
  }
}

// A directory opens as a model to start from; its head is kept for the same classes, and new for others.
TEST(PictureModels, GoOnFromADirectory) {
  const harness::ScratchFolder scratch;
  train_on(1, picture_recipe("vit", {"snapshot.every=6", "train.steps=6"}), scratch / "base");
  const std::filesystem::path folder = scratch / "base" / "snapshots" / "step-00000006";
  const base::Json config = base::parse_json(base::read_file(folder / "config.json", 1 << 20));
  EXPECT_EQ(config["architectures"][0], "ViTForImageClassification");
  EXPECT_EQ(config["id2label"].size(), 4u);
  EXPECT_EQ(base::parse_json(base::read_file(folder / "preprocessor_config.json", 1 << 20))["size"]["height"], 8);
  const std::string from = "model.from=" + folder.string();
  const auto recipe = [&](std::vector<std::string> sets) {
    base::Recipe continued = base::Recipe::parse(R"(
      [data]
      kind = "images"
      [images]
      classes = 4
      count = 64
      held_out = 16
      [train]
      steps = 2
      global_batch = 16
      [log]
      tensorboard = false
      trace = false
      [snapshot]
      every = 0
      [eval]
      every = 1
    )",
                                                 "continued");
    continued.set(from);
    for (const std::string& set : sets) continued.set(set);
    return continued;
  };
  train_on(1, recipe({"optim.learning_rate=0"}), scratch / "same");
  EXPECT_NEAR(values_of(scratch / "same", "eval_loss").back(), values_of(scratch / "base", "eval_loss").back(), 1e-5);
  train_on(1, recipe({"images.classes=3"}), scratch / "other");
  EXPECT_EQ(values_of(scratch / "other", "loss").size(), 2u);
  train_on(2, recipe({"model.lora.rank=2", "model.lora.targets=[\"query\", \"value\"]"}), scratch / "lora");
  EXPECT_EQ(values_of(scratch / "lora", "loss").size(), 2u);
  EXPECT_THAT(refusal_of(recipe({"images.size=16"})), HasSubstr("images.size = 16: the model in"));
  EXPECT_THAT(refusal_of(recipe({"images.channels=1"})), HasSubstr("images.channels = 1: the model in"));
  EXPECT_THAT(refusal_of(recipe({"data.kind=text"})), HasSubstr("reads pictures"));
}

TEST(PictureModels, RefuseWhatDoesNotFit) {
  const auto refused = [](const std::string& kind, const std::vector<std::string>& sets) { return refusal_of(picture_recipe(kind, sets)); };
  EXPECT_THAT(refused("vit", {"model.patch=3"}), HasSubstr("model.patch = 3: images.size = 8 is no multiple"));
  EXPECT_THAT(refused("vit", {"model.heads=3"}), HasSubstr("must be a multiple of model.heads = 3"));
  EXPECT_THAT(refused("vit", {"model.kv_heads=1"}), HasSubstr("Leave model.kv_heads and head_dim out"));
  EXPECT_THAT(refusal_of(picture_recipe("vit", {"mesh.cp=2"}), 2), HasSubstr("reads no sequences"));
  EXPECT_THAT(refused("vit", {"recompute.mode=stream"}), HasSubstr("reads no sequences to slice"));
  EXPECT_THAT(refused("vit", {"model.parscale.streams=2"}), HasSubstr("vit is no decoder"));
  EXPECT_THAT(refused("cnn", {"train.precision=bf16"}), HasSubstr("computes in fp32 only"));
  EXPECT_THAT(refused("cnn", {"model.cnn.kernel=2"}), HasSubstr("model.cnn.kernel = 2: must be odd"));
  EXPECT_THAT(refused("cnn", {"model.cnn.depths=[1]"}), HasSubstr("1 numbers of layers for 2 stages"));
  EXPECT_THAT(refused("cnn", {"model.residual=ladder"}), HasSubstr("no residual stream"));
  EXPECT_THAT(refused("llama", {}), HasSubstr("reads tokens, and the data have none"));
  EXPECT_THAT(refused("cnn", {"data.kind=text"}), HasSubstr("reads pictures"));
  EXPECT_THAT(refused("classifier", {}), HasSubstr("does not read pictures"));
}

}  // namespace
}  // namespace cairn::train
