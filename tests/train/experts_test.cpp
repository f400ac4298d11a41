// Mixtures of experts through the whole loop: they learn, whatever the layout, and their load evens out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scratch_folder.h"
#include "train/refusal.h"
#include "train/train_on.h"

namespace cairn::train {
namespace {

base::Recipe expert_recipe(const std::string& moe = "", const std::string& more = "", const std::string& kind = "qwen3_moe",
                           int steps = 8) {
  return base::Recipe::parse(fmt::format(R"(
    model = {{kind = "{}", layers = 2, embed = 32, heads = 2, kv_heads = 2, mlp = 24, moe = {{experts = 6, z_loss = 0.001{}}}}}
    data = {{vocab = 260, length = 16, stories_bytes = 20000}}
    train = {{global_batch = 6, steps = {}}}
    optim = {{learning_rate = 0.01, warmup_steps = 4, schedule = "constant"}}
    log = {{tensorboard = false, trace = false, samples = 0}}
    eval = {{every = 0}}
    snapshot = {{every = 4}}
    {}
  )",
                                         kind, moe, steps, more),
                             "experts.toml");
}

double last_number(const std::filesystem::path& out, const std::string& name) {
  return base::read_metrics(out / "metrics.jsonl").back().number(name);
}

TEST(ExpertRuns, LearnAndReportTheLoad) {
  const harness::ScratchFolder scratch;
  for (const std::string kind : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    const std::filesystem::path out = scratch / kind;
    const std::vector<double> losses = losses_on(1, expert_recipe("", "", kind, 30), out);
    EXPECT_LT(losses.back(), 0.8 * losses.front()) << kind;
    EXPECT_GT(last_number(out, "aux_loss"), 0.9) << kind;  // 1 where the load is even
    EXPECT_LT(last_number(out, "aux_loss"), 2) << kind;
    EXPECT_GE(last_number(out, "expert_load"), 1) << kind;
    EXPECT_GT(last_number(out, "z_loss"), 0) << kind;
  }
}

TEST(ExpertRuns, GiveTheSameLossesOnAnyLayout) {
  const harness::ScratchFolder scratch;
  const std::vector<double> one = losses_on(1, expert_recipe(), scratch / "one");
  const auto expect_same = [&](const std::string& name, int ranks, const std::string& more) {
    const std::vector<double> found = losses_on(ranks, expert_recipe("", more), scratch / name);
    ASSERT_EQ(found.size(), one.size()) << name;
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(found[i], one[i], 2e-5 * one[i]) << name << ", step " << i + 1;
    EXPECT_NEAR(last_number(scratch / name, "aux_loss"), last_number(scratch / "one", "aux_loss"), 1e-3) << name;
    EXPECT_NEAR(last_number(scratch / name, "expert_load"), last_number(scratch / "one", "expert_load"), 0.02) << name;
  };
  expect_same("dp", 3, "");
  expect_same("tp", 2, "mesh = {tp = 2}");
  expect_same("pp", 2, "mesh = {pp = 2}\npipeline = {micro_batches = 2}");
  expect_same("cp", 2, "mesh = {cp = 2}");
  expect_same("zero", 2, "memory = {zero = 3}");
  expect_same("recomputed", 1, "recompute = {mode = \"full\"}");
}

TEST(ExpertRuns, WithBiasesResumeAsIfTheyHadNotStopped) {
  const harness::ScratchFolder scratch;
  const std::string bias = ", balance = \"bias\", bias_rate = 0.1";
  const std::vector<double> whole = losses_on(1, expert_recipe(bias), scratch / "whole");
  losses_on(1, expert_recipe(bias, "", "qwen3_moe", 4), scratch / "parts");
  const std::vector<double> parts = losses_on(1, expert_recipe(bias), scratch / "parts", /*resume=*/true);
  EXPECT_EQ(parts, whole);
  EXPECT_NE(whole, losses_on(1, expert_recipe(", balance = \"none\""), scratch / "none"));
}

TEST(ExpertRuns, RefuseWhatDoesNotWork) {
  const auto refused = [](const std::string& moe, const std::string& more = "", const std::string& kind = "qwen3_moe", int ranks = 1) {
    return refusal_of(expert_recipe(moe, more, kind), ranks);
  };
  using testing::HasSubstr;
  EXPECT_THAT(refused("", "", "llama"), HasSubstr("model.moe: model.kind = \"llama\" has no experts"));
  EXPECT_THAT(refused(", top_k = 7"), HasSubstr("model.moe.top_k = 7: there are model.moe.experts = 6"));
  EXPECT_THAT(refused(", shared_width = 8"), HasSubstr("qwen3_moe has no shared expert"));
  EXPECT_THAT(refused(", every = 2", "", "mixtral"), HasSubstr("every layer of mixtral has experts"));
  EXPECT_THAT(refused(", every = 3"), HasSubstr("of model.layers = 2 none would have experts"));
  EXPECT_THAT(refused(", normalize = false", "", "mixtral"), HasSubstr("the weights of mixtral add up to 1"));
  EXPECT_THAT(refused("", "mesh = {tp = 2}", "olmoe", 2), HasSubstr("norms all heads of a token together"));
}

}  // namespace
}  // namespace cairn::train
