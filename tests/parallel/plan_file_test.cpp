#include "parallel/layout/plan_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "mesh/splits.h"

namespace cairn::parallel {
namespace {

Plan pipeline_plan() {
  Plan plan;
  plan.mesh.axes = {{"island", 2}, {"pp", 2}, {"dp", 1}, {"shard", 2}, {"cp", 3}, {"tp", 4}};
  plan.placements["model.layers.0.mlp.up_proj.weight"].axes = {{"tp", mesh::split_by_counts(0, {3, 2, 2, 2})}};
  plan.placements["k"].axes = {{"tp", mesh::Ragged{.dim = 0, .owners = {{0, 1}, {2, 3}}, .lengths = {4, 4}}}};
  plan.placements["even"].axes = {{"tp", mesh::Split{.dim = 1}}};
  plan.sync = {{"dp", "all_reduce"}, {"island", "all_reduce"}};
  plan.micro_batch = 2;
  plan.micro_batches = 8;
  plan.stage_blocks = {3, 4, 4, 3};
  plan.rank_of_stage = {0, 1, 1, 0};
  plan.schedule = "zbv";
  plan.registers = 2;
  plan.context = {model::ContextForm::gather, false};
  plan.zero = 2;
  plan.precision = "bf16";
  return plan;
}

TEST(PlanFiles, AreReadBackAsTheyWere) {
  Plan permuted;
  permuted.mesh = mesh::parse_mesh("tp=2,dp=3 on [5,4,3,2,1,0]");
  Plan parts;
  parts.mesh = mesh::parse_mesh("island=(dp=4,tp=2|dp=2)");
  Plan one;
  one.mesh.axes = {{"dp", 1}};
  Plan along_cp = one;
  along_cp.mesh.axes.push_back({"cp", 2});
  for (const Plan& plan : {Plan{}, one, along_cp, permuted, parts, pipeline_plan()}) {
    EXPECT_EQ(parse_plan(to_json(plan), "p.json"), plan) << to_json(plan);
  }
}

TEST(PlanFiles, DescribeWhatDiffers) {
  const Plan before = pipeline_plan();
  EXPECT_TRUE(differences(before, before).empty());
  Plan after = before;
  after.placements.erase("model.layers.0.mlp.up_proj.weight");
  after.placements["even"].axes = {{"tp", mesh::Split{.dim = 0}}};
  after.mesh.axes.back().size = 8;
  after.stage_blocks = {4, 3, 4, 3};
  after.zero = 3;
  after.sync.erase("island");
  EXPECT_EQ(
      differences(before, after),
      (std::vector<std::string>{"mesh.tp: 4 -> 8", "mesh: island=2,pp=2,dp=1,shard=2,cp=3,tp=4 -> island=2,pp=2,dp=1,shard=2,cp=3,tp=8",
                                "zero: 2 -> 3", "pipeline.stage_blocks: [3, 4, 4, 3] -> [4, 3, 4, 3]", "sync.island: all_reduce -> none",
                                "placements.even: tp: split(1) -> tp: split(0)",
                                "placements.model.layers.0.mlp.up_proj.weight: tp: split(0, 0:3|3:5|5:7|7:9) -> replicated"}));
}

TEST(PlanFiles, RefuseWhatIsNoPlan) {
  struct Bad {
    std::string text, words;
  };
  for (const Bad& bad : std::vector<Bad>{
           {"", "p.json: "},
           {"[]", "must be an object"},
           {"{}", "p.json: mesh is missing"},
           {R"({"mesh": {"dp": 2)", "p.json: "},
           {R"({"mesh": {"dp": 2, "dp": 3}})", "p.json: "},
           {R"({"mesh": {"dp": 2}, "zeroo": 1})", "did you mean \"zero\"?"},
           {R"({"mesh": {"dp": 0}})", "mesh.dp = 0: must be a whole number from 1 to 1048576"},
           {R"({"mesh": {"dp": 2.5}})", "mesh.dp = 2.5"},
           {R"({"mesh": {"dp": 18446744073709551615}})", "mesh.dp = 18446744073709551615"},
           {R"({"mesh": {"dp": 1048576, "tp": 1048576}})", "at most 1048576"},
           {R"({"mesh": {"up": 2}})", "up"},
           {R"({"mesh": {"dp": 2}, "ranks": [0, 0]})", "p.json: mesh: "},
           {R"({"mesh": {"dp": 2}, "ranks": 7})", "ranks = 7: must be a list"},
           {R"({"mesh": "dp=2,dp=2"})", "p.json: mesh: "},
           {R"({"mesh": {"dp": 2}, "placements": {"w": 3}})", "placements.w = 3: must be a text"},
           {R"json({"mesh": {"dp": 2}, "placements": {"w": "tp: spilt(0)"}})json", "placements.w: "},
           {R"json({"mesh": {"dp": 2}, "placements": {"w": "tp: split(99999999999999999999)"}})json", "placements.w: "},
           {R"({"mesh": {"dp": 2}, "sync": {"dq": "all_reduce"}})", "dq"},
           {R"({"mesh": {"dp": 2}, "sync": "all_reduce"})", "must be an object"},
           {R"({"mesh": {"dp": 2}, "micro_batch": 0})", "micro_batch = 0"},
           {R"({"mesh": {"dp": 2}, "micro_batches": -1})", "micro_batches = -1"},
           {R"({"mesh": {"dp": 2}, "zero": 4})", "zero = 4: must be a whole number from 0 to 3"},
           {R"({"mesh": {"dp": 2}, "zero": true})", "zero = true"},
           {R"({"mesh": {"dp": 2}, "precision": "fp8"})", "precision = \"fp8\": must be fp32 or bf16"},
           {R"({"mesh": {"cp": 2}, "context": {"form": "star"}})", "unknown context.form \"star\""},
           {R"({"mesh": {"cp": 2}, "context": {"balanced": 1}})", "context.balanced = 1: must be true or false"},
           {R"({"mesh": {"pp": 2}, "pipeline": {"stage_blocks": [1, 0], "rank_of_stage": [0, 1]}})", "pipeline.stage_blocks = 0"},
           {R"({"mesh": {"pp": 2}, "pipeline": {"stage_blocks": [1, 2, 3], "rank_of_stage": [0, 1]}})",
            "stage_blocks has 3 stages and rank_of_stage 2"},
           {R"({"mesh": {"pp": 2}, "pipeline": {"registers": 99999999999}})", "pipeline.registers"},
           {std::string(100000, '['), "p.json: "},
           {R"({"mesh": {"dp": 2}, "placements": )" + std::string(20, '[') + "1" + std::string(20, ']') + "}", "deep"}}) {
    try {
      parse_plan(bad.text, "p.json");
      ADD_FAILURE() << "accepted: " << bad.text.substr(0, 100);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input) << bad.text.substr(0, 100);
      EXPECT_NE(std::string(error.what()).find(bad.words), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace cairn::parallel
