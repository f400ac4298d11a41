// bf16 through the whole loop, with fp32 master weights and without.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/memory_tags.h"
#include "base/metrics.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "train/build.h"
#include "train/refusal.h"
#include "train/train.h"
#include "train/train_on.h"

namespace cairn::train {
namespace {

base::Recipe precision_recipe(const std::string& precision, const std::string& parameters, const std::string& kind = "llama") {
  return base::Recipe::parse(fmt::format(R"(
    model = {{kind = "{}", layers = 2, embed = 32, heads = 2, kv_heads = {}, mlp = 48}}
    data = {{vocab = 260, length = 16, stories_bytes = 20000}}
    train = {{global_batch = 6, micro_batch = 2, steps = 30, precision = "{}", parameters = "{}"}}
    optim = {{learning_rate = 0.01, warmup_steps = 4}}
    snapshot = {{every = 10}}
    log = {{tensorboard = false, trace = false, samples = 1}}
    eval = {{every = 10, samples = 4}}
  )",
                                         kind, kind == "gpt2" ? 2 : 1, precision, parameters),
                             "precision.toml");
}

TEST(Precision, Bf16LearnsAsFp32Does) {
  const harness::ScratchFolder scratch;
  for (const std::string kind : {"llama", "qwen3", "gpt2"}) {
    const std::vector<double> exact = losses_on(1, precision_recipe("fp32", "fp32", kind), scratch / (kind + "-fp32"));
    for (const std::string parameters : {"fp32", "bf16"}) {
      const std::vector<double> low = losses_on(1, precision_recipe("bf16", parameters, kind), scratch / (kind + "-" + parameters));
      ASSERT_EQ(low.size(), 30u);
      EXPECT_NE(low, exact);  // it did compute in another precision
      EXPECT_NEAR(low[0], exact[0], 1e-3) << kind;
      // Rounding differs between processors, and a large step amplifies it; over all steps the differences average out.
      double all = 0, all_exact = 0;
      for (size_t i = 0; i < 30; ++i) {
        EXPECT_NEAR(low[i], exact[i], 0.03 * exact[i]) << kind << " " << parameters << ", step " << i + 1;
        all += low[i], all_exact += exact[i];
      }
      EXPECT_NEAR(all, all_exact, 0.005 * all_exact) << kind << " " << parameters;
    }
  }
}

// Three ranks have the micro-batches of one rank. Four ranks have other micro-batches, whose products bf16 rounds differently.
TEST(Precision, RankCountsAgree) {
  const harness::ScratchFolder scratch;
  for (const std::string parameters : {"fp32", "bf16"}) {
    const auto on = [&](int ranks) {
      return losses_on(ranks, precision_recipe("bf16", parameters), scratch / fmt::format("{}{}", parameters, ranks));
    };
    const std::vector<double> one = on(1), three = on(3), four = on(4);
    for (size_t i = 0; i < 30; ++i) {
      EXPECT_NEAR(three[i], one[i], 1e-6 * one[i]) << parameters << ", step " << i + 1;
      EXPECT_NEAR(four[i], one[i], 0.01 * one[i]) << parameters << ", step " << i + 1;
    }
  }
}

TEST(Precision, ContinuesBitForBitFromASnapshot) {
  const harness::ScratchFolder scratch;
  for (const std::string parameters : {"fp32", "bf16"}) {
    const base::Recipe recipe = precision_recipe("bf16", parameters);
    const std::vector<double> whole = losses_on(2, recipe, scratch / parameters);
    std::filesystem::remove_all(scratch / parameters / "snapshots" / "step-00000030");
    EXPECT_EQ(losses_on(2, recipe, scratch / parameters, /*resume=*/true), whole) << parameters;
  }
}

TEST(Precision, ParametersTakeTheMemoryTheyShould) {
  const auto bytes = [](const std::string& precision, const std::string& parameters) {
    int64_t result = 0;
    harness::on_ranks(1, [&](comm::World& world) {
      const auto job = build(world, precision_recipe(precision, parameters), {}, {});
      result = job->instruments.memory->of(base::MemoryUse::parameters).now;
    });
    return result;
  };
  const int64_t whole = bytes("fp32", "fp32");
  EXPECT_EQ(bytes("bf16", "fp32"), whole / 2 * 3);
  EXPECT_EQ(bytes("bf16", "bf16"), whole / 2);
}

// Everything in bf16, without master weights: the memory of a plain bf16 model in PyTorch.
base::Recipe all_bf16(const std::string& train, const std::string& precision = "bf16") {
  return base::Recipe::parse(fmt::format(R"(
    model = {{layers = 2, embed = 32, heads = 2, kv_heads = 1, mlp = 48}}
    data = {{vocab = 260, length = 16, stories_bytes = 20000}}
    train = {{global_batch = 6, steps = 30, precision = "{}", gradients = "bf16"{}}}
    optim = {{learning_rate = 0.01, warmup_steps = 4, moments = "bf16", rounding = "nearest"}}
    snapshot = {{every = 10}}
    log = {{tensorboard = false, trace = false, samples = 0}}
    eval = {{fraction = 0}}
  )",
                                         precision, train),
                             "all_bf16.toml");
}

TEST(Precision, EverythingMayBeKeptInBf16) {
  const harness::ScratchFolder scratch;
  const base::Recipe recipe = all_bf16(", parameters = \"bf16\"");
  const std::vector<double> low = losses_on(1, recipe, scratch / "low");
  EXPECT_LT(low.back(), 0.8 * low.front());
  std::filesystem::remove_all(scratch / "low" / "snapshots" / "step-00000030");
  EXPECT_EQ(losses_on(1, recipe, scratch / "low", /*resume=*/true), low);
  harness::on_ranks(1, [&](comm::World& world) {
    const auto job = build(world, recipe, {}, {});
    const int64_t parameters = job->instruments.memory->of(base::MemoryUse::parameters).now;
    EXPECT_EQ(job->instruments.memory->of(base::MemoryUse::gradients).now, parameters);
    EXPECT_EQ(job->instruments.memory->of(base::MemoryUse::optimizer).now, 2 * parameters);
  });
}

TEST(Precision, GradientsThatAreSummedUpAreNotKeptInBf16) {
  EXPECT_THAT(refusal_of(all_bf16(", micro_batch = 2")), testing::HasSubstr("set train.micro_batch = 0 (it is 2)"));
  EXPECT_THAT(refusal_of(all_bf16("", "fp32")), testing::HasSubstr("train.gradients = bf16 needs train.precision = bf16"));
  base::Recipe masha = all_bf16(", method = \"masha1\"");
  masha.set("optim.moments=\"fp32\"");
  masha.set("optim.rounding=\"stochastic\"");
  EXPECT_THAT(refusal_of(masha), testing::HasSubstr("the method keeps its own sums in fp32"));
  const base::Stop never;
  const harness::Run two =
      harness::on_ranks(2, {.expect_errors = true}, [&](comm::World& world) { run(world, all_bf16(""), {}, {}, never); });
  EXPECT_THAT(two.error_on(0).what(), testing::HasSubstr("does not work with mesh.dp = 2 (2 ranks)"));
}

TEST(Precision, WhatCannotBeIsRefused) {
  EXPECT_THAT(refusal_of(precision_recipe("fp32", "bf16")), testing::HasSubstr("needs train.precision = bf16"));
  EXPECT_THAT(refusal_of(precision_recipe("bf16", "fp32", "classifier")), testing::HasSubstr("does not work with model.kind = classifier"));
}

}  // namespace
}  // namespace cairn::train
