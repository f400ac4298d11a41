#include "study/hdee_plan.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "study/hdee_recipe.h"

namespace cairn::study {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const StudyData kData{.vocab = 257, .length = 16, .batch = 4, .micro_batch = 4, .tokens = {{"tales", 1 << 20}, {"sums", 1 << 20}}};

std::string refused(const std::vector<std::string>& sets, const std::string& more = "") {
  try {
    HdeeRecipe recipe = read_hdee(hdee_file(more), sets);
    plan_hdee(recipe, kData);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "accepted";
}

TEST(FactsOf, CountsTheHeadButNoTableThatIsOnlyLookedUpIn) {
  model::ModelOptions size;
  size.layers = 1, size.embed = 16, size.heads = 2, size.kv_heads = 1, size.mlp = 32;
  const int64_t layer = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 32 + 2 * 16, table = 257 * 16;
  EXPECT_EQ(facts_of(size, 257, 16, 1).matmul_parameters, layer + 16 + table);  // tied: the table is the head
  EXPECT_EQ(facts_of(size, 257, 16, 1).parameters, layer + 16 + table);
  size.tied = false;
  EXPECT_EQ(facts_of(size, 257, 16, 1).matmul_parameters, layer + 16 + table);
  EXPECT_EQ(facts_of(size, 257, 16, 1).parameters, layer + 16 + 2 * table);
}

TEST(PlanHdee, GivesEachModeWhatItsLinesDifferIn) {
  HdeeRecipe recipe = read_hdee(hdee_file(), {"study.compare=['uniform', 'sizes']"});
  const HdeePlan plan = plan_hdee(recipe, kData);
  const auto shown = [&](const std::string& mode) {
    std::vector<std::string> ids;
    for (const PlannedExpert& expert : plan.mode(mode).experts) ids.push_back(expert.id());
    return ids;
  };
  EXPECT_THAT(shown("uniform"), ElementsAre("easy-m-8", "hard-m-8"));
  EXPECT_THAT(shown("steps"), ElementsAre("easy-m-6", "hard-m-10"));
  EXPECT_THAT(shown("sizes"), ElementsAre("easy-s-8", "hard-l-8"));
  const PlannedExpert& easy = plan.mode("uniform").experts[0];
  EXPECT_EQ(easy.tokens, 8 * 4 * 16);
  EXPECT_DOUBLE_EQ(easy.flops, 6.0 * static_cast<double>(easy.facts.matmul_parameters) * 8 * 4 * 16);
  EXPECT_DOUBLE_EQ(plan.mode("steps").share, 1);
}

TEST(PlanHdee, RefusesAModeOffTheBudgetAndSaysWhatWouldFit) {
  const std::string said = refused({"study.line.hard.steps=11"});
  EXPECT_THAT(said, HasSubstr("mode steps"));
  EXPECT_THAT(said, HasSubstr("6.25 % more than the budget"));
  EXPECT_THAT(said, HasSubstr("10 steps for line hard would fit"));
  EXPECT_EQ(refused({"study.line.hard.steps=11", "study.budget.tolerance=0.07"}), "accepted");
  EXPECT_THAT(refused({"study.mode=sizes", "study.size.l.mlp=96"}), HasSubstr("mlp = 48 for size l would fit"));
}

TEST(PlanHdee, SolvesForTheOneThingThatIsLeftOpen) {
  HdeeRecipe steps = read_hdee(hdee_file(), {"study.budget.solve=hard", "study.line.hard.steps=1"});
  plan_hdee(steps, kData);
  EXPECT_EQ(steps.lines.at("hard").steps, 10);
  HdeeRecipe width = read_hdee(hdee_file(), {"study.mode=sizes", "study.budget.solve=l", "study.size.l.mlp=1"});
  EXPECT_THAT(plan_hdee(width, kData).notes, ElementsAre("size l: mlp 48, so that mode sizes meets the budget"));
  EXPECT_EQ(width.sizes.at("l").mlp, 48);
  EXPECT_THAT(refused({"study.budget.solve=m"}), HasSubstr("the budget itself is counted with it"));
  EXPECT_THAT(refused({"study.budget.solve=l"}), HasSubstr("no mode that is trained depends on it"));
  EXPECT_THAT(refused({"study.budget.solve=x"}), HasSubstr("neither a line nor a size"));
}

TEST(PlanHdee, ReadsASmallDomainOnlySoOften) {
  StudyData little = kData;
  little.tokens["sums"] = 2 * 4 * 16;  // two steps
  HdeeRecipe recipe = read_hdee(hdee_file(), {"study.mode=uniform"});
  const HdeePlan plan = plan_hdee(recipe, little);
  EXPECT_THAT(plan.mode("uniform").experts[1].steps, ElementsAre(8));  // four times two
  recipe.study.epochs_max = 2;
  const HdeePlan shorter = plan_hdee(recipe, little);
  EXPECT_THAT(shorter.mode("uniform").experts[1].steps, ElementsAre(4));
  EXPECT_THAT(shorter.notes, ElementsAre(HasSubstr("domain sums: 128 tokens are read 2 times in 4 steps")));
}

TEST(AssignByDifficulty, GivesTheDearestToTheHardestAndKeepsTheTotal) {
  HdeeRecipe recipe = read_hdee(hdee_file(), {});
  assign_by_difficulty(recipe, {{"easy", 2.0}, {"hard", 1.0}}, kData);
  EXPECT_EQ(recipe.lines.at("easy").size, "l");
  EXPECT_EQ(recipe.lines.at("easy").steps, 10);
  EXPECT_EQ(recipe.lines.at("hard").size, "s");
  EXPECT_DOUBLE_EQ(plan_hdee(recipe, kData).mode("steps").share, 1);
}

TEST(ReadHdee, RefusesWhatDoesNotFitTogether) {
  EXPECT_THAT(refused({"study.line.hard.size=xl"}), HasSubstr("unknown size \"xl\""));
  EXPECT_THAT(refused({"study.line.hard.domains=['sum']"}), HasSubstr("did you mean \"sums\""));
  EXPECT_THAT(refused({"study.mode=size"}), HasSubstr("one of uniform, sizes, steps, both"));
  EXPECT_THAT(refused({"study.compare=['size']"}), HasSubstr("did you mean \"sizes\""));
  EXPECT_THAT(refused({"ensemble.top_k=3"}), HasSubstr("ensemble.top_k = 3: there are 2 experts"));
  EXPECT_THAT(refused({"ensemble.decay=1"}), HasSubstr("less than 1"));
  EXPECT_THAT(refused({"ensemble.decay=-0.1"}), HasSubstr("between 0 and 1"));
  EXPECT_THAT(refused({"model.from=x"}), HasSubstr("set study.size.NAME.from"));
  EXPECT_THAT(refused({}, "[study.line.\"a/b\"]\ndomains = [\"sums\"]\n"), HasSubstr("letters, digits"));
  EXPECT_THAT(refused({}, "[stdy]\nmode = 1\n"), HasSubstr("did you mean `study`"));
  EXPECT_THAT(refused({"study.uniform_step=3"}), HasSubstr("did you mean `study.uniform_steps`"));
}

TEST(ReadHdee, LeavesExpertsTheOtherSectionsOnTheirOwnLines) {
  const HdeeRecipe recipe = read_hdee(hdee_file(), {"train.seed=7", "study.mode=uniform", "model.layers=2"});
  EXPECT_THAT(recipe.sets, ElementsAre("train.seed=7"));
  EXPECT_EQ(recipe.sizes.at("m").layers, 2);
  EXPECT_THAT(recipe.training.text, HasSubstr("[data]\ntokenizer = \"bytes\"\nlength = 16\n[train]"));
  EXPECT_EQ(recipe.training.text.find("study"), std::string::npos);
  EXPECT_EQ(recipe.training.text.find("embed"), std::string::npos);
  const std::string all = hdee_file().text;
  EXPECT_EQ(std::count(recipe.training.text.begin(), recipe.training.text.end(), '\n'), std::count(all.begin(), all.end(), '\n'));
}

}  // namespace
}  // namespace cairn::study
