// Training with fp8 linear layers: close to bf16, the same on any layout except for rounding, bitwise identical when resumed, refused where
// it is not supported.
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "base/stop.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "train/train.h"
#include "train/train_on.h"

namespace cairn::train {
namespace {

base::Recipe fp8_recipe(const std::string& fp8, const std::vector<std::string>& sets = {}, const std::string& kind = "llama") {
  base::Recipe recipe = base::Recipe::parse(fmt::format(R"(
    model = {{kind = "{}", layers = 2, embed = 64, heads = 4, kv_heads = {}, mlp = 96}}
    data = {{vocab = 288, length = 16, stories_bytes = 30000}}
    train = {{global_batch = 8, steps = 24, precision = "bf16", fp8 = "{}"}}
    optim = {{learning_rate = 0.01, warmup_steps = 4}}
    log = {{tensorboard = false, trace = false, samples = 0}}
    eval = {{fraction = 0}}
  )",
                                                        kind, kind == "gpt2" ? 4 : 2, fp8),
                                            "fp8.toml");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::abs(a[i] - b[i]) / b[i]);
  return worst;
}

TEST(Fp8, TrainsAsBf16DoesInEveryFamily) {
  const harness::ScratchFolder scratch;
  for (const std::string kind : {"llama", "gpt2", "qwen2"}) {
    const std::vector<double> low = losses_on(1, fp8_recipe("none", {}, kind), scratch / (kind + "-none"));
    EXPECT_LT(low.back(), 0.8 * low.front());
    for (const std::string fp8 : {"layers", "all"}) {
      const std::vector<double> found = losses_on(1, fp8_recipe(fp8, {}, kind), scratch / (kind + "-" + fp8));
      EXPECT_GT(largest_difference(found, low), 1e-4) << kind << " " << fp8;  // or the test shows nothing
      EXPECT_LT(largest_difference(found, low), 0.03) << kind << " " << fp8;
    }
  }
}

// Shards of a matrix have their own scale factors, which changes rounding only.
TEST(Fp8, IsTheSameOnAnyLayoutButForRoundings) {
  const harness::ScratchFolder scratch;
  const std::vector<double> alone = losses_on(1, fp8_recipe("all"), scratch / "alone");
  int at = 0;
  for (const auto& [ranks, sets] : std::vector<std::pair<int, std::vector<std::string>>>{{1, {"recompute.mode=\"full\""}},
                                                                                         {1, {"train.micro_batch=3"}},
                                                                                         {2, {"mesh.dp=2"}},
                                                                                         {2, {"mesh.shard=2", "memory.zero=3"}},
                                                                                         {2, {"mesh.tp=2"}},
                                                                                         {2, {"mesh.tp=2", "tensor.overlap=true"}},
                                                                                         {2, {"mesh.pp=2", "train.micro_batch=2"}}}) {
    const std::vector<double> found = losses_on(ranks, fp8_recipe("all", sets), scratch / std::to_string(at++));
    EXPECT_LT(largest_difference(found, alone), 0.02) << sets.front();
    if (sets.front().starts_with("recompute")) {
      EXPECT_EQ(largest_difference(found, alone), 0);
    }
  }
}

// Chunks have their own scale factors, or on a GPU the factor of all rows where it is known beforehand: rounding differs.
TEST(Fp8, WithChunkedCrossEntropyIsThatOfOneChunk) {
  const harness::ScratchFolder scratch;
  const std::vector<double> whole = losses_on(1, fp8_recipe("all"), scratch / "whole");
  EXPECT_LT(largest_difference(losses_on(1, fp8_recipe("all", {"train.loss_chunks=3"}), scratch / "parts"), whole), 2e-3);
  const std::vector<double> narrow = losses_on(1, fp8_recipe("all", {"train.gradients=\"bf16\""}), scratch / "narrow");
  EXPECT_LT(
      largest_difference(losses_on(1, fp8_recipe("all", {"train.loss_chunks=7", "train.gradients=\"bf16\""}), scratch / "both"), narrow),
      2e-3);
}

TEST(Fp8, ResumesExactly) {
  const harness::ScratchFolder scratch;
  const base::Recipe recipe = fp8_recipe("layers", {"snapshot.every=8"});
  const std::vector<double> whole = losses_on(1, recipe, scratch / "run");
  std::filesystem::remove_all(scratch / "run" / "snapshots" / "step-00000024");
  EXPECT_EQ(losses_on(1, recipe, scratch / "run", /*resume=*/true), whole);
}

TEST(Fp8, OfSomeLayersOnly) {
  const harness::ScratchFolder scratch;
  const std::vector<double> none = losses_on(1, fp8_recipe("none"), scratch / "none"),
                            one = losses_on(1, fp8_recipe("layers", {"train.fp8_layers=\"1\""}), scratch / "one"),
                            both = losses_on(1, fp8_recipe("layers"), scratch / "both");
  EXPECT_GT(largest_difference(one, none), 0);
  EXPECT_GT(largest_difference(one, both), 0);
}

TEST(Fp8, IsRefusedWhereItCannotBe) {
  const auto refused = [](const base::Recipe& recipe, const std::string& why, int ranks = 1) {
    const base::Stop never;
    const harness::Run told =
        harness::on_ranks(ranks, {.expect_errors = true}, [&](comm::World& world) { run(world, recipe, {}, {}, never); });
    EXPECT_THAT(told.error_on(0).what(), testing::HasSubstr(why));
  };
  refused(fp8_recipe("all", {"train.precision=\"fp32\""}), "train.fp8 = all needs train.precision = bf16");
  refused(fp8_recipe("layers", {"model.mlp=100"}), "mlp.gate_proj.weight is 200 wide");
  refused(fp8_recipe("layers", {"model.mlp=48", "mesh.tp=2"}), "on rank 0 of mesh.tp = 2", 2);
  // Four heads over three ranks: two, one and one.
  refused(fp8_recipe("layers", {"model.embed=96", "model.heads=4", "model.kv_heads=4", "model.head_dim=24", "mesh.tp=3"}),
          "is 72 wide on rank 1 of mesh.tp = 3", 3);
  refused(fp8_recipe("layers", {"data.kind=\"preference\""}), "the reference model of a preference computes in bf16");
  refused(fp8_recipe("none", {"train.fp8_layers=\"1\""}), "no layer is in fp8");
  refused(fp8_recipe("layers", {"train.fp8_layers=\"5\""}), "train.fp8_layers = \"5\": there is no layer 5, the last is 1");
}

}  // namespace
}  // namespace cairn::train
