// Runs with a given plan: the numbers of the recipe's own plan, edits that take effect, and edits that are refused.
#include "train/given_plan.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "harness/scratch_folder.h"
#include "parallel/layout/plan_file.h"
#include "train/planned.h"
#include "train/train.h"

namespace cairn::train {
namespace {

base::Recipe plain_recipe(const std::vector<std::string>& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    layers = 2
    embed = 16
    heads = 4
    kv_heads = 2
    mlp = 20
    [data]
    tokenizer = "bytes"
    length = 13
    stories_bytes = 20000
    [train]
    steps = 3
    global_batch = 6
    [log]
    tensorboard = false
    trace = false
    samples = 0
    [eval]
    samples = 3
  )",
                                            "plain");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

std::vector<double> losses(int ranks, const std::vector<std::string>& sets, const parallel::Plan* plan) {
  const harness::ScratchFolder scratch;
  const base::Stop never;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run([&](comm::World& world) {
         Start start;
         start.out = scratch / "run";
         if (plan) start.plan = std::make_shared<parallel::Plan>(*plan);
         run(world, plain_recipe(sets), start, {}, never);
       }))
    if (error) std::rethrow_exception(error);
  std::vector<double> all;
  for (const base::MetricsRow& row : base::read_metrics(scratch / "run" / "metrics.jsonl")) all.push_back(row.number("loss"));
  if (plan) {
    EXPECT_EQ(parallel::read_plan(scratch / "run" / "plan.json"), *plan);  // what was run
    EXPECT_EQ(planned(base::Recipe::parse_file(scratch / "run" / "recipe.toml"), ranks).plan.placements, plan->placements);
  }
  return all;
}

parallel::Plan plan_of(int ranks, const std::vector<std::string>& sets) { return planned(plain_recipe(sets), ranks).plan; }

TEST(GivenPlans, GiveTheLossesOfTheRecipeThatMadeThem) {
  struct Layout {
    int ranks;
    std::vector<std::string> sets;
  };
  for (const Layout& layout : std::vector<Layout>{{1, {}},
                                                  {3, {"memory.zero=3"}},
                                                  {4, {"mesh.tp=2", "train.micro_batch=2"}},
                                                  {4, {"mesh.shard=2"}},
                                                  {2, {"mesh.cp=2", "context.form=gather", "memory.zero=1"}},
                                                  {4, {"mesh.pp=2", "mesh.tp=2", "pipeline.micro_batches=3"}},
                                                  {2, {"mesh.pp=2", "pipeline.schedule=zbv", "pipeline.registers=2"}},
                                                  {2, {"mesh.pp=2", "train.micro_batch=2"}}}) {
    const parallel::Plan plan = plan_of(layout.ranks, layout.sets);
    const std::vector<double> own = losses(layout.ranks, layout.sets, nullptr);
    EXPECT_EQ(own.size(), 3U);
    EXPECT_EQ(losses(layout.ranks, {}, &plan), own) << parallel::to_json(plan);
    EXPECT_EQ(losses(layout.ranks, layout.sets, &plan), own) << "in plan and recipe, with the same values";
  }
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * std::abs(b[i]));
}

TEST(GivenPlans, MayBeEditedWhereTheModelCanFollow) {
  const std::vector<double> one = losses(1, {}, nullptr);
  parallel::Plan stages = plan_of(2, {"mesh.pp=2"});
  ASSERT_EQ(stages.stage_blocks.size(), 2U);
  stages.stage_blocks = {stages.stage_blocks[0] - 2, stages.stage_blocks[1] + 2};
  expect_close(losses(2, {}, &stages), one);
  // Another order of the axes, and ranks in reverse order.
  parallel::Plan turned = plan_of(4, {"mesh.tp=2"});
  turned.mesh = mesh::parse_mesh("tp=2,dp=2 on [3,2,1,0]");
  expect_close(losses(4, {}, &turned), one);
}

TEST(GivenPlans, MayLeavePlacementsOut) {
  parallel::Plan plan = plan_of(2, {"mesh.tp=2"});
  const parallel::Plan filled = plan;
  plan.placements.clear();
  EXPECT_EQ(planned(plain_recipe({}), 2, &plan).plan, filled);
}

TEST(GivenPlans, RefuseWhatTheModelOrTheRecipeCannotFollow) {
  const parallel::Plan tp = plan_of(2, {"mesh.tp=2"}), pp = plan_of(2, {"mesh.pp=2"}), zero = plan_of(2, {"memory.zero=2"});
  const auto refused = [](const parallel::Plan& plan, const std::vector<std::string>& sets, int ranks, const std::string& words) {
    try {
      planned(plain_recipe(sets), ranks, &plan);
      ADD_FAILURE() << "accepted where \"" << words << "\" was expected";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  parallel::Plan edited = tp;
  edited.placements.erase(up);
  EXPECT_TRUE(parallel::placement_of(planned(plain_recipe({}), 2, &edited).plan, up).axes.empty());  // replicated: on DTensors
  refused(edited, {"model.residual=ladder"}, 2, up + " is \"replicated\": block layers.0.attention_norm has no form for it");
  edited = tp;
  edited.placements[up] = mesh::parse_placement("tp: split(0)");  // the same, written otherwise
  EXPECT_EQ(planned(plain_recipe({}), 2, &edited).plan, tp);
  edited.placements[up] = mesh::parse_placement("tp: split(7)");
  refused(edited, {}, 2, "the plan's placement of " + up);
  edited.placements[up] = mesh::parse_placement("tp: partial(sum)");
  refused(edited, {}, 2, "a parameter cannot be a partial sum. Use replicate or split(DIM).");
  edited.placements[up] = mesh::parse_placement("tp: ragged(0, 1|0)");
  refused(edited, {}, 2, "a block has no form for a table of owners");
  edited.placements[up] = mesh::parse_placement("dp: split(0)");
  refused(edited, {}, 2, "parameters are placed along tp only. Leave dp out, and use memory.zero to shard them along it.");
  edited.placements[up] = mesh::parse_placement("ep: split(0)");
  refused(edited, {}, 2, up);
  edited = tp;
  edited.placements["model.layers.0.mlp.upp_proj.weight"] = {};
  refused(edited, {}, 2, "did you mean \"model.layers.0.mlp.up_proj.weight\"?");
  refused(tp, {}, 4, "the plan is for 2 ranks (dp=1,tp=2) and there are 4: pass --nproc 2");
  refused(tp, {"mesh.tp=4"}, 2, "mesh.tp = 4: the plan says 2: leave the key out, or edit the plan");
  refused(tp, {"train.precision=bf16"}, 2, "train.precision = \"bf16\": the plan says \"fp32\"");
  refused(tp, {"train.micro_batch=1"}, 2, "train.micro_batch = 1: the plan says 6");
  refused(tp, {"model.heads=2", "model.kv_heads=1", "model.mlp=1"}, 2,
          "gate_proj.weight: tp: split(0): its parts end at 20, the dim has 1");
  edited = tp;
  edited.micro_batch = 7;
  refused(edited, {}, 2, "the plan's micro_batch = 7: it must be 6 here");
  edited = zero;
  edited.zero = 0;
  refused(edited, {}, 2, "with zero = 0 nothing is sharded");
  edited = tp;
  edited.zero = 1;
  refused(edited, {}, 2, "there is one rank along shard and cp");
  edited = pp;
  edited.stage_blocks = {1, 1};
  refused(edited, {}, 2, "the plan's stages have 2 blocks in all");
  edited.stage_blocks = {2, 2, 2};
  edited.rank_of_stage = {0, 1, 0};
  refused(edited, {}, 2, "3 stages");
  edited = pp;
  edited.rank_of_stage = {1, 0};
  refused(edited, {}, 2, "the plan runs its stages on the ranks [1, 0] along pp, and the schedule 1f1b on [0, 1]");
  edited = pp;
  edited.schedule = "2f2b";
  refused(edited, {}, 2, "2f2b");
  edited = tp;
  edited.sync["dp"] = "gossip";
  refused(edited, {}, 2, "gossip");
  edited = tp;
  edited.mesh.ranks = {4, 5};
  refused(edited, {}, 2, "its ranks must be 0 to 1");
  edited = tp;
  edited.mesh = mesh::parse_mesh("island=(dp=1|dp=1)");
  refused(edited, {}, 2, "parts of different shapes");
}

}  // namespace
}  // namespace cairn::train
