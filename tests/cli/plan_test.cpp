#include <gtest/gtest.h>

#include "program.h"

namespace cairn::cli {
namespace {

std::string plan_says(const harness::ScratchFolder& scratch, std::vector<std::string> arguments, int code = 0) {
  arguments.insert(arguments.begin(), "plan");
  const Outcome outcome = cairn(scratch, arguments);
  EXPECT_EQ(outcome.code, code) << outcome.output;
  return outcome.output;
}

void expect_in(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
}

TEST(PlanCommand, ShowsTheLayoutAndWhatItSends) {
  const harness::ScratchFolder scratch;
  const std::string shown = plan_says(scratch, tiny({"--mesh", "dp=3"}));
  expect_in(shown, "plan: dp=3 on 3 ranks\n");
  expect_in(shown, "  model          llama, 5.74k parameters in 11 tensors\n");
  expect_in(shown, "  step           5 samples of 16 positions, micro-batches of 2\n");
  expect_in(shown, "parameters 22.4 KiB, gradients 22.4 KiB, optimizer 44.9 KiB\n");
  expect_in(shown, "  dp     gradient  91904  89.8 KiB\n");  // 2 (3 - 1) 4 x 5744
  expect_in(shown, "  all    loss        160  160 B\n");     // 2 (3 - 1) 8 (2 + 3): loss, stop, three times
  EXPECT_EQ(shown.find("because"), std::string::npos);
  expect_in(plan_says(scratch, tiny({})), "a step sends nothing: there is one rank\n");
}

TEST(PlanCommand, InfersPlacementsAndMoves) {
  const harness::ScratchFolder scratch;
  const std::string shown = plan_says(scratch, tiny({"--mesh", "dp=2,tp=2", "--infer", "rules"}));
  expect_in(shown, "moves, in the order in which every rank does them\n");
  expect_in(shown, "dp S0, tp B");
  expect_in(shown, "cairn train --plan FILE trains with these parameters");
  const std::string free = plan_says(scratch, tiny({"--mesh", "dp=2,tp=2", "--infer", "free", "--json"}));
  expect_in(free, "\"inside_operations\"");
  plan_says(scratch, tiny({"--mesh", "dp=2,tp=2", "--infer", "free", "--links", "dp=20ms,100Mbit", "--links", "tp=5us,100Gbit"}));
  expect_in(plan_says(scratch, tiny({"--mesh", "dp=2,tp=2", "--infer", "free", "--links", "dp=20ms,100Mbit"}), 2), "none along tp");
  expect_in(plan_says(scratch, tiny({"--mesh", "tp=2", "--infer", "rules", "--place", "lm_heat.weight=B"}), 2), "lm_heat.weight");
  expect_in(plan_says(scratch, tiny({"--mesh", "pp=2", "--infer", "free"}), 2), "mesh.pp is 2");
  expect_in(plan_says(scratch, tiny({"--infer", "free"}), 2), "there is one rank");
  // What was inferred is a plan like any other: one can be compared, and trained with where the blocks can.
  const std::string rules = (scratch / "rules.json").string(), other = (scratch / "free.json").string(),
                    keys = (scratch / "keys.json").string();
  expect_in(plan_says(scratch, tiny({"--mesh", "tp=2", "--infer", "rules", "--save", rules})), "rules.json: saved");
  plan_says(scratch, tiny({"--mesh", "tp=2", "--infer", "free", "--save", other}));
  plan_says(scratch, tiny({"--mesh", "tp=2", "--save", keys}));
  expect_in(plan_says(scratch, {"--diff", rules, other}), "placements.model.layers.0.mlp.up_proj.weight: tp: split(0) -> replicated");
  expect_in(plan_says(scratch, tiny({"--plan", other, "--explain"})), "the block runs on DTensors");
  expect_in(plan_says(scratch, tiny({"--plan", rules, "--explain"})), "tp: split(1) into 8+8");
  EXPECT_EQ(plan_says(scratch, tiny({"--plan", rules})), plan_says(scratch, tiny({"--plan", keys})));
}

TEST(PlanCommand, ExplainsPlacementsAndMessages) {
  const harness::ScratchFolder scratch;
  const std::string shown = plan_says(scratch, tiny({"--mesh", "tp=2", "--explain"}));
  expect_in(shown, "tp: split(0) into 130+130  embedding; rows of the vocabulary");
  expect_in(shown, "tp: ragged(0) into 8+8     R2: feeds an attention, whole heads; fewer key heads than ranks");
  expect_in(shown, "layers.*.mlp, forward");
  expect_in(shown, "all_gather      80x16 fp32       1   5120  activation  tokens are sharded along tp");
  expect_in(shown, "not in a step: evaluations, snapshots");
}

TEST(PlanCommand, SavesReadsAndComparesPlans) {
  const harness::ScratchFolder scratch;
  const std::string json = plan_says(scratch, tiny({"--mesh", "tp=2", "--json"}));
  expect_in(json, "\"model.layers.0.mlp.up_proj.weight\": \"tp: split(0, 0:8|8:16)\"");
  expect_in(plan_says(scratch, tiny({"--mesh", "tp=2", "--save", "a.json"})), "a.json: saved; cairn train --plan a.json trains with it\n");
  EXPECT_EQ(scratch.text_of("a.json"), json);
  EXPECT_EQ(plan_says(scratch, tiny({"--plan", "a.json", "--json"})), json);
  EXPECT_EQ(plan_says(scratch, {"--diff", "a.json", "a.json"}), "the plans are the same\n");
  plan_says(scratch, tiny({"--mesh", "dp=2", "--save", "b.json", "--set", "memory.zero=2"}));
  const std::string differs = plan_says(scratch, {"--diff", "a.json", "b.json"});
  expect_in(differs, "mesh.tp: 2 -> 1\n");
  expect_in(differs, "zero: 0 -> 2\n");
  expect_in(differs, "placements.model.layers.0.mlp.up_proj.weight: tp: split(0, 0:8|8:16) -> replicated\n");
}

TEST(PlanCommand, RefusesWhatContradictsItself) {
  const harness::ScratchFolder scratch;
  plan_says(scratch, tiny({"--mesh", "tp=2", "--save", "a.json"}));
  expect_in(plan_says(scratch, {"--plan", "a.json", "--mesh", "tp=2"}, 2), "leave out --mesh");
  expect_in(plan_says(scratch, {"--diff", "a.json", "a.json", "--json"}, 2), "leave out everything else");
  expect_in(plan_says(scratch, {"--plan", "none.json"}, 2), "none.json");
  expect_in(plan_says(scratch, tiny({"--plan", "a.json", "--nproc", "3"}), 2), "the plan is for 2 ranks");
  scratch.file("bad.json", "{\"mesh\": {\"dp\": -1}}");
  expect_in(plan_says(scratch, tiny({"--plan", "bad.json"}), 2), "bad.json: mesh.dp = -1: must be a whole number from 1");
}

TEST(TrainCommand, TrainsWithASavedPlan) {
  const harness::ScratchFolder scratch;
  plan_says(scratch, tiny({"--mesh", "tp=2", "--save", "a.json"}));
  const auto train = [&](const std::string& out, std::vector<std::string> how, int code = 0) {
    std::vector<std::string> arguments = tiny({"train", "--out", out, "--set", "train.steps=3"});
    arguments.insert(arguments.end(), how.begin(), how.end());
    const Outcome outcome = cairn(scratch, arguments);
    EXPECT_EQ(outcome.code, code) << outcome.output;
    return outcome.output;
  };
  train("own", {"--mesh", "tp=2"});
  train("planned", {"--plan", "a.json"});
  train("planned_threads", {"--plan", "a.json", "--transport", "local"});
  EXPECT_EQ(losses_in(scratch / "own").size(), 3U);
  EXPECT_EQ(losses_in(scratch / "planned"), losses_in(scratch / "own"));
  EXPECT_EQ(losses_in(scratch / "planned_threads"), losses_in(scratch / "own"));
  std::string edited = scratch.text_of("a.json");
  const std::string from = "\"model.layers.0.mlp.up_proj.weight\": \"tp: split(0, 0:8|8:16)\"";
  ASSERT_NE(edited.find(from), std::string::npos);
  edited.replace(edited.find(from), from.size(), "\"model.layers.0.mlp.up_proj.weight\": \"replicated\"");
  scratch.file("edited.json", edited);
  train("edited", {"--plan", "edited.json"});  // one weight of the MLP is replicated
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses_in(scratch / "edited")[i], losses_in(scratch / "own")[i], 1e-5);
  edited.replace(edited.find("\"replicated\""), 12, "\"tp: partial(sum)\"");
  scratch.file("partial.json", edited);
  expect_in(train("partial", {"--plan", "partial.json"}, 2), "up_proj.weight is \"tp: partial(sum)\": a parameter cannot be a partial sum");
  expect_in(train("both", {"--plan", "a.json", "--set", "mesh.tp=1"}, 2), "mesh.tp = 1: the plan says 2");
}

}  // namespace
}  // namespace cairn::cli
