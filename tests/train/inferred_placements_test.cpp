// Plans that --infer makes, trained: `cairn plan --infer free --save P` and `cairn train --plan P`, on the virtual network.
#include "train/inferred_placements.h"

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "harness/ranks.h"
#include "parallel/layout/plan_file.h"
#include "train/layout_trace.h"
#include "train/planned.h"

namespace cairn::train {
namespace {

struct Shape {
  std::string kind;
  std::string more = "";  // keys of [model]
};

base::Recipe shaped_recipe(const Shape& shape, int64_t micro_batch, int64_t length) {
  return base::Recipe::parse(fmt::format(R"(
    [model]
    kind = "{}"
    layers = 1
    embed = 32
    heads = 4
    mlp = 48
    {}
    [data]
    vocab = 260
    length = {}
    stories_bytes = 20000
    [train]
    global_batch = 4
    micro_batch = {}
  )",
                                         shape.kind, shape.more, length, micro_batch),
                             "test");
}

LayoutTrace trace(base::Recipe recipe, int ranks, std::shared_ptr<const parallel::Plan> plan, int64_t steps = 2) {
  LayoutTrace found;
  harness::on_ranks(ranks, [&](comm::World& world) {
    LayoutTrace own = trace_layout(world, recipe, {.steps = steps, .tensors = true, .plant = {}, .cache = {}, .plan = plan});
    if (world.rank() == 0) found = std::move(own);
  });
  return found;
}

std::shared_ptr<parallel::Plan> inferred(base::Recipe recipe, const std::string& mesh, const std::string& how) {
  int ranks = 1;
  for (const mesh::Axis& axis : mesh::parse_mesh(mesh).axes) {
    recipe.set("mesh." + axis.name, static_cast<int64_t>(axis.size), "test");
    ranks *= axis.size;
  }
  const Planned p = planned(recipe, ranks);
  auto plan = std::make_shared<parallel::Plan>(p.plan);
  plan->placements = infer_placements(p, how == "rules").parameters;
  return std::make_shared<parallel::Plan>(parallel::parse_plan(parallel::to_json(*plan), "saved"));
}

void expect_one_ranks_losses(const base::Recipe& recipe, const std::vector<std::string>& meshes) {
  const LayoutTrace one = trace(recipe, 1, nullptr);
  for (const std::string& mesh : meshes) {
    SCOPED_TRACE(mesh);
    const auto plan = inferred(recipe, mesh, "free");
    const LayoutTrace many = trace(recipe, plan->mesh.size(), plan);
    for (size_t i = 0; i < one.steps.size(); ++i) EXPECT_NEAR(many.steps[i].loss, one.steps[i].loss, 1e-5);
    const Difference found = first_difference(many, one, 1e-5);
    EXPECT_EQ(found.step, 0) << found.what << " by " << found.largest << " of " << found.scale;
  }
}

const Shape kLlama{"llama", "kv_heads = 2"}, kGpt2{"gpt2", "kv_heads = 4"}, kQwen{"qwen3", "kv_heads = 2"};

class InferredPlan : public testing::TestWithParam<std::tuple<Shape, std::string>> {};

TEST_P(InferredPlan, TrainsToTheLossesOfOneRank) {
  const auto& [shape, mesh] = GetParam();
  expect_one_ranks_losses(shaped_recipe(shape, 2, 12), {mesh});
}

INSTANTIATE_TEST_SUITE_P(Every, InferredPlan,
                         testing::Combine(testing::Values(kLlama, kGpt2, kQwen), testing::Values("tp=2", "tp=4", "dp=2,tp=2")),
                         [](const auto& one) {
                           std::string name = std::get<0>(one.param).kind + "_" + std::get<1>(one.param);
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '=' || c == ','; }, '_');
                           return name;
                         });

// Long sequences and few weights: samples are split along tp, and every weight is replicated.
TEST(InferredPlans, TrainReplicatedWeights) {
  const base::Recipe recipe = shaped_recipe(kLlama, 4, 64);
  const auto plan = inferred(recipe, "tp=2", "free");
  EXPECT_TRUE(parallel::placement_of(*plan, "model.layers.0.mlp.up_proj.weight").axes.empty());
  expect_one_ranks_losses(recipe, {"tp=2"});
}

// Placements by pattern, each unlike what the blocks would choose.
struct PlaceCase {
  std::string name, mesh;
  std::vector<std::string> sets;  // of plan.place, and others with "="
};

class PlacedBy : public testing::TestWithParam<PlaceCase> {};

TEST_P(PlacedBy, PatternTrainsToTheLossesOfOneRank) {
  const base::Recipe recipe = shaped_recipe(kLlama, 3, 10);
  base::Recipe placed = recipe;
  int ranks = 1;
  for (const mesh::Axis& axis : mesh::parse_mesh(GetParam().mesh).axes) {
    placed.set("mesh." + axis.name, static_cast<int64_t>(axis.size), "test");
    ranks *= axis.size;
  }
  for (const std::string& set : GetParam().sets) placed.set(set);
  const Difference found = first_difference(trace(placed, ranks, nullptr), trace(recipe, 1, nullptr), 1e-5);
  EXPECT_EQ(found.step, 0) << found.what << " by " << found.largest << " of " << found.scale;
}

INSTANTIATE_TEST_SUITE_P(
    Every, PlacedBy,
    testing::Values(
        PlaceCase{"rows_for_columns", "tp=2", {"plan.place.*.q_proj.*=S(1)", "plan.place.*.o_proj.*=S(0)"}},
        PlaceCase{"replicated_on_three", "tp=3", {"plan.place.*=B"}},
        PlaceCase{"tables_and_gains", "tp=2", {"plan.place.*embed_tokens*=S(1)", "plan.place.*norm*=S(0)", "plan.place.*.down_proj.*=B"}},
        PlaceCase{"pipeline", "pp=2,tp=2", {"plan.place.*.mlp.*=B", "train.micro_batch=0", "pipeline.micro_batches=2"}},
        PlaceCase{"zero3", "dp=2,tp=2", {"plan.place.*.k_proj.*=B", "memory.zero=3"}},
        PlaceCase{"recompute", "tp=2", {"plan.place.*.o_proj.*=B", "recompute.mode=full"}},
        PlaceCase{"documents", "tp=2", {"plan.place.*.v_proj.*=B", "data.packing=separate"}}),
    [](const auto& one) { return one.param.name; });

// In bf16 a block rounds where one rank does, at its borders.
TEST(PlanPlace, TrainsInBf16) {
  base::Recipe recipe = shaped_recipe(kLlama, 2, 12);
  recipe.set("train.precision=bf16");
  base::Recipe placed = recipe;
  placed.set("mesh.tp=2"), placed.set("plan.place.*.mlp.*=B"), placed.set("plan.place.*.q_proj.*=S(1)");
  const LayoutTrace one = trace(recipe, 1, nullptr), two = trace(placed, 2, nullptr);
  for (size_t i = 0; i < one.steps.size(); ++i) EXPECT_NEAR(two.steps[i].loss, one.steps[i].loss, 0.01);
}

void expect_refused(const std::vector<std::string>& sets, const std::string& words) {
  base::Recipe recipe = shaped_recipe(kLlama, 2, 12);
  recipe.set("mesh.tp=2");
  for (const std::string& set : sets) recipe.set(set);
  try {
    planned(recipe, 2);
    ADD_FAILURE() << "accepted, and not refused with: " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(PlanPlace, RefusesWhatMatchesNothingOrContradictsItself) {
  expect_refused({"plan.place.\"*.up_prj.weight\"=B"}, "there is no such parameter: did you mean \"*.up_proj.weight\"?");
  expect_refused({"plan.place.*.mlp.*=B", "plan.place.*.up_proj.*=S(0)"}, "both match model.layers.0.mlp.up_proj.weight");
  expect_refused({"plan.place.*.mlp.*=split"},
                 "plan.place.\"*.mlp.*\" = \"split\": is no placement of a parameter. Use B (replicated) or S(0)");
  expect_refused({"plan.place.*.input_layernorm.*=S(1)"}, "has no such dim of at least mesh.tp = 2 indices");
  expect_refused({"plan.place.*.mlp.*=B", "model.dropout=0.1"},
                 "model.dropout = 0.1: does not work with the placement of the parameters of");
  expect_refused({"plan.place.*.mlp.*=B", "model.residual=ladder"}, "has no form for it, because every rank along tp has the whole stream");
}

// What a run saves has the patterns, and reads back.
TEST(PlanPlace, IsInTheSavedRecipe) {
  base::Recipe recipe = base::Recipe::parse("[plan.place]\n\"*.mlp.*\" = \"B\"\n", "mine.toml");
  planned(recipe, 1);
  EXPECT_EQ(recipe.read_patterns("plan.place"), (std::map<std::string, std::string>{{"*.mlp.*", "B"}}));
  EXPECT_NE(recipe.resolved_toml().find("[plan.place]\n\"*.mlp.*\" = \"B\"  # mine.toml:2\n"), std::string::npos);
  base::Recipe again = base::Recipe::parse(recipe.resolved_toml(), "saved.toml");
  EXPECT_EQ(again.read_patterns("plan.place"), recipe.read_patterns("plan.place"));
}

// Weights that the recipe places are fixed for inference too.
TEST(PlanPlace, HoldsForInference) {
  base::Recipe recipe = shaped_recipe(kLlama, 2, 12);
  recipe.set("plan.place.*.up_proj.*=S(1)");
  for (const char* how : {"free", "rules"})
    EXPECT_EQ(mesh::to_string(parallel::placement_of(*inferred(recipe, "tp=2", how), "model.layers.0.mlp.up_proj.weight")), "tp: split(1)");
}

}  // namespace
}  // namespace cairn::train
