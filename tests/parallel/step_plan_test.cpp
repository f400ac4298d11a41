#include "parallel/step_plan/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_of.h"

namespace cairn::parallel {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

// Ranks 0, 1 and 2 have a long sequence; rank 2 has a short one before it, rank 3 has two.
StepPlan example() {
  return {.step = 5,
          .ranks = 4,
          .micro_batches = 0,
          .units = {{.ranks = {2}, .sequences = {{3, 10}}, .micro_batch = 0, .predicted_s = 1},
                    {.ranks = {0, 1, 2}, .sequences = {{0, 900}}, .micro_batch = 0, .predicted_s = 4},
                    {.ranks = {3}, .sequences = {{1, 200}, {2, 100}}, .micro_batch = 0, .predicted_s = 2}}};
}

StepPlan in_micro_batches() {
  StepPlan plan = example();
  plan.micro_batches = 2;
  plan.units[1].micro_batch = plan.units[2].micro_batch = 1;
  return plan;
}

std::string refusal(const StepPlan& plan, int64_t places = 4) {
  return base::message_of([&] { check(plan, places); });
}

TEST(StepPlan, SaysWhatEachRankRuns) {
  check(example(), 4);
  EXPECT_THAT(passes_of(example(), 0), ElementsAre(1));
  EXPECT_THAT(passes_of(example(), 2), ElementsAre(0, 1));
  EXPECT_THAT(passes_of(example(), 3), ElementsAre(2));
  EXPECT_EQ(max_passes(example()), 2);
  check(in_micro_batches(), 4);
  EXPECT_THAT(passes_of(in_micro_batches(), 0), ElementsAre(kNoUnit, 1));
  EXPECT_THAT(passes_of(in_micro_batches(), 2), ElementsAre(0, 1));
  EXPECT_EQ(degrees_text(example()), "1x3 + 2x1");
}

TEST(StepPlan, PredictsWaitsToo) {
  EXPECT_THAT(predicted_load_s(example()), ElementsAre(DoubleEq(4), DoubleEq(4), DoubleEq(5), DoubleEq(2)));
  EXPECT_DOUBLE_EQ(predicted_step_s(example()), 5);
  EXPECT_DOUBLE_EQ(predicted_imbalance(example()), 5 * 4 / 15.0);
  EXPECT_DOUBLE_EQ(predicted_step_s(in_micro_batches()), 1 + 4);
}

TEST(StepPlan, IsReadBackFromItsText) {
  for (const StepPlan& plan : {example(), in_micro_batches()}) EXPECT_EQ(parse_step_plan(to_json(plan), "a test"), plan);
  StepPlan other = example();
  other.units[0].predicted_s = 9;
  EXPECT_EQ(plan_hash(other), plan_hash(example()));  // the same work
  other.units[1].ranks = {0, 2, 1};
  EXPECT_NE(plan_hash(other), plan_hash(example()));
}

TEST(StepPlan, RefusesPlansThatCannotRun) {
  StepPlan plan = example();
  plan.units[0].ranks = {4};
  EXPECT_THAT(refusal(plan), HasSubstr("step plan of step 5, unit 0: rank 4 of 4"));
  plan = example();
  plan.units[1].ranks = {0, 1, 1};
  EXPECT_THAT(refusal(plan), HasSubstr("rank 1 is in it twice"));
  plan = example();
  plan.units[2].sequences[1].place = 0;
  EXPECT_THAT(refusal(plan), HasSubstr("the sequence at place 0 is planned twice"));
  EXPECT_THAT(refusal(example(), 5), HasSubstr("it has 4 of the 5 sequences"));
  EXPECT_THAT(refusal(example(), 3), HasSubstr("place 3 in a batch of 3"));
  plan = in_micro_batches();
  plan.units[1].micro_batch = 0;
  EXPECT_THAT(refusal(plan), HasSubstr("rank 2 has another unit in micro-batch 0"));
  plan = example();
  plan.units[0].sequences.clear();
  EXPECT_THAT(refusal(plan), HasSubstr("no ranks or no sequences"));
}

TEST(StepPlan, RefusesTextsThatAreNone) {
  const auto refused = [](const std::string& text) { return base::message_of([&] { (void)parse_step_plan(text, "steps.jsonl:3"); }); };
  EXPECT_THAT(refused("{"), HasSubstr("steps.jsonl:3: no step plan"));
  EXPECT_THAT(refused("[]"), HasSubstr("a step plan without \"step\""));
  EXPECT_THAT(refused(R"({"step": 1, "ranks": 2.5, "micro_batches": 0, "units": []})"), HasSubstr("ranks = 2.5"));
  EXPECT_THAT(refused(R"({"step": 1, "ranks": 2, "micro_batches": 0, "units": [{"ranks": [2]}]})"), HasSubstr("ranks = 2"));
  EXPECT_THAT(refused(R"({"step": 1, "ranks": 2, "micro_batches": 0, "units": [{"ranks": [0], "places": [1, 2], "lengths": [1]}]})"),
              HasSubstr("2 places and 1 lengths"));
}

}  // namespace
}  // namespace cairn::parallel
