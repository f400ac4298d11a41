// train.cache_frozen_bytes: leading layers without trained parameters run once for each sample, and have no backward pass.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/stop.h"
#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "model/frozen_prefix.h"
#include "snapshot/folder.h"
#include "train/job.h"
#include "train/train.h"
#include "train_on.h"

namespace cairn::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

base::Recipe frozen_run(const std::vector<std::string>& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    data = {length = 12, stories_bytes = 4000, tokenizer = "bytes"}
    train = {steps = 3, global_batch = 6}
    optim = {warmup_steps = 0, learning_rate = 0.01, schedule = "constant"}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 0, fraction = 0.0}
  )",
                                            "frozen.toml");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

// Adapters on the last of three layers of a small model, for two epochs.
std::vector<std::string> top_layer_of(const fs::path& model, const std::string& bytes) {
  return {"model.from=" + model.string(),
          "model.adapter.rank=2",
          "model.adapter.targets=[\"model.layers.2.self_attn.q_proj\", \"model.layers.2.mlp.down_proj\"]",
          "train.steps=0",
          "train.epochs=2",
          "train.cache_frozen_bytes=" + bytes};
}

fs::path small_model(const fs::path& scratch) {
  train_on(1, frozen_run({"model.layers=3", "model.embed=16", "model.heads=2", "model.kv_heads=1", "model.mlp=24"}), scratch / "first");
  return snapshot::step_folder((scratch / "first").string(), 3);
}

TEST(FrozenCache, ChangesNoLossAndIsReadInTheSecondEpoch) {
  const harness::ScratchFolder scratch;
  const fs::path model = small_model(scratch.path());
  const std::vector<double> without = losses_on(1, frozen_run(top_layer_of(model, "0")), scratch / "without");
  const base::Stop never;
  int64_t restored = -1, bytes = -1;
  size_t blocks = 0;
  harness::on_ranks(1, [&](comm::World& world) {
    Start start;
    start.out = scratch / "with";
    run(world, frozen_run(top_layer_of(model, "100000000")), start, {}, never, {.at_end = [&](Job& job) {
          restored = job.engine.frozen->restored(), bytes = job.engine.frozen->bytes(), blocks = job.engine.frozen->blocks();
        }});
  });
  std::vector<double> with;
  for (const base::MetricsRow& row : base::read_metrics(scratch / "with" / "metrics.jsonl")) with.push_back(row.number("loss"));
  ASSERT_GT(without.size(), 4u);
  EXPECT_EQ(with, without);
  EXPECT_GT(blocks, 2u);
  EXPECT_GT(bytes, 0);
  EXPECT_GT(restored, static_cast<int64_t>(without.size()) / 2 * 6 - 12);  // nearly all samples of the second epoch
}

TEST(FrozenCache, WithoutSpaceStillLeavesTheBackwardPassOut) {
  const harness::ScratchFolder scratch;
  const fs::path model = small_model(scratch.path());
  const std::vector<double> without = losses_on(1, frozen_run(top_layer_of(model, "0")), scratch / "without");
  EXPECT_EQ(losses_on(1, frozen_run(top_layer_of(model, "1")), scratch / "tiny"), without);
}

TEST(FrozenCache, IsTheSameOnTwoRanks) {
  const harness::ScratchFolder scratch;
  const fs::path model = small_model(scratch.path());
  const std::vector<double> one = losses_on(1, frozen_run(top_layer_of(model, "100000000")), scratch / "one");
  std::vector<std::string> sets = top_layer_of(model, "100000000");
  sets.emplace_back("mesh.dp=2");
  const std::vector<double> two = losses_on(2, frozen_run(sets), scratch / "two");
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-5);
}

TEST(FrozenCache, RefusesAModelWhoseFirstLayersAreTrained) {
  const harness::ScratchFolder scratch;
  try {
    train_on(1, frozen_run({"model.layers=1", "model.embed=16", "model.heads=2", "model.mlp=24", "train.cache_frozen_bytes=1000"}),
             scratch / "run");
    FAIL() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("train.cache_frozen_bytes = 1000: the first layers are trained"));
  }
}

}  // namespace
}  // namespace cairn::train
