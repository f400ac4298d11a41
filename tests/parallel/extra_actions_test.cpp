// Recomputations, offloads, gathers and reductions as actions: where they go, that they run, what they cost and what is refused.
#include "parallel/schedule/extra_actions.h"

#include <gtest/gtest.h>

#include "base/actors/simulation.h"
#include "base/error.h"
#include "parallel/pipeline/actors.h"
#include "parallel/schedule/check.h"
#include "parallel/schedule/csv.h"
#include "parallel/schedule/timeline.h"

namespace cairn::parallel {
namespace {

constexpr ExtraActions kAllExtra{.recompute = true, .offload = true, .gather = true, .reduce = true};

std::string why_refused(const std::string& csv) {
  try {
    read_schedule_csv(csv, "s.csv");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "it was read";
}

// A rank's share of the model takes 1 s forward, and 1 s for each gradient.
double step_seconds(const Schedule& schedule, const RankCosts& costs = {}) {
  return timeline_stats(timeline(schedule, even_costs(schedule, costs))).step_s;
}

TEST(ExtraActions, GoWhereTheyOverlap) {
  const Schedule gpipe = make_schedule({.name = "gpipe", .ranks = 2, .micro_batches = 3});
  EXPECT_EQ(to_csv(add_actions(gpipe, {.recompute = true})), "0F0,0F1,0F2,0R2,0B2,0R1,0B1,0R0,0B0\n1F0,1F1,1F2,1R2,1B2,1R1,1B1,1R0,1B0\n");
  EXPECT_EQ(to_csv(add_actions(gpipe, {.recompute = true, .except_last = true, .offload = true})),
            "0F0,0O0,0F1,0O1,0F2,0B2,0R1,0B1,0R0,0B0\n1F0,1O0,1F1,1O1,1F2,1B2,1R1,1B1,1R0,1B0\n");
  EXPECT_EQ(to_csv(add_actions(gpipe, {.offload = true, .gather = true, .reduce = true})),
            "0UNSHARD,0F0,0O0,0F1,0O1,0F2,0B2,0B1,0B0,0REDUCE_GRAD\n1UNSHARD,1F0,1O0,1F1,1O1,1F2,1B2,1B1,1B0,1REDUCE_GRAD\n");
  // Of two stages on a rank the second is gathered one action ahead; the gradients of each leave when it is done.
  const Schedule two = read_schedule_csv("0F0,0F1,1F0,1B0,1F1,1B1,0B0,0B1\n", "s.csv");
  EXPECT_EQ(to_csv(add_actions(two, {.gather = true, .reduce = true})),
            "0UNSHARD,0F0,1UNSHARD,0F1,1F0,1B0,1F1,1B1,1REDUCE_GRAD,0B0,0B1,0REDUCE_GRAD\n");
}

TEST(ExtraActions, OfAFileStayWhereTheyAre) {
  const std::string text = "0F0,0F1,0R0,0R1,0B0,0B1\n";
  EXPECT_EQ(to_csv(add_actions(read_schedule_csv(text, "s.csv"), {.recompute = true})), text);
}

TEST(ExtraActions, OfEverySchedulePassTheCheckAndTheRegisters) {
  for (const int ranks : {1, 2, 3, 4})
    for (const int micro_batches : {1, 3, 8, 9})
      for (const ScheduleKind& kind : schedule_kinds()) {
        if (kind.micro_batches == MicroBatchRule::multiple_of_ranks && micro_batches % ranks != 0) continue;
        if (kind.micro_batches == MicroBatchRule::at_least_two_per_rank && micro_batches < 2 * ranks) continue;
        const Schedule schedule =
            add_actions(make_schedule({.name = kind.name, .ranks = ranks, .micro_batches = micro_batches}), kAllExtra);
        ASSERT_NO_THROW(check(schedule)) << kind.name;
        Schedule back = read_schedule_csv(to_csv(schedule), kind.name);
        EXPECT_EQ(back, schedule);
        std::vector<StageEdge> edges;
        for (int stage = 0; stage + 1 < schedule.stages(); ++stage) edges.push_back({"stream", stage, stage + 1});
        const PipelineActors actors = all_actors(schedule, edges, edge_registers(schedule, edges));
        const base::Simulation simulation = base::simulate(actors.graph);
        ASSERT_TRUE(simulation.stuck.empty()) << kind.name << ": " << simulation.stuck.front();
        EXPECT_NEAR(
            simulation.end_s,
            step_seconds(schedule, {1.0 * schedule.stages() / ranks, 1.0 * schedule.stages() / ranks, 1.0 * schedule.stages() / ranks}),
            1e-9)
            << kind.name << ranks << micro_batches;
      }
}

// The chain of first gradients goes through p-1 stages; each saves its recomputation.
TEST(RecomputeAhead, SavesARecomputationForEachStageButTheLast) {
  for (const char* name : {"gpipe", "1f1b"})
    for (const int ranks : {2, 3, 4})
      for (const int micro_batches : {1, 4, 7}) {
        const Schedule plain = make_schedule({.name = name, .ranks = ranks, .micro_batches = micro_batches});
        const double late = step_seconds(plain, {.transfer_s = 0.25, .recompute_in_backward_s = 1});
        const double ahead = step_seconds(add_actions(plain, {.recompute = true}), {.transfer_s = 0.25});
        if (std::string_view(name) == "gpipe") {
          EXPECT_DOUBLE_EQ(late, (micro_batches + ranks - 1) * 4 + 2 * (ranks - 1) * 0.25);
          EXPECT_DOUBLE_EQ(late - ahead, ranks - 1) << name << ranks << micro_batches;
        }
        EXPECT_LT(ahead, late) << name << ranks << micro_batches;
      }
}

TEST(ActionsThatMoveData, TakeNoTimeOfTheRankButAreWaitedFor) {
  StageCosts costs{{1}, {1}, {1}};
  const auto step = [&](const std::string& csv) { return timeline_stats(timeline(read_schedule_csv(csv, "s.csv"), costs)); };
  EXPECT_DOUBLE_EQ(step("0F0,0B0").step_s, 3);
  costs.gather_s = {0.5};
  costs.reduce_s = {2};
  EXPECT_DOUBLE_EQ(step("0UNSHARD,0F0,0B0").step_s, 3.5);
  EXPECT_DOUBLE_EQ(step("0F0,0B0,0REDUCE_GRAD").step_s, 5);
  EXPECT_DOUBLE_EQ(step("0F0,0B0,0REDUCE_GRAD").ranks[0].busy_s, 3);
  costs.offload_s = {1.5};
  EXPECT_DOUBLE_EQ(step("0F0,0O0,0F1,0R0,0B0,0B1").step_s, 1 + 1.5 + 1 + 2 + 2);  // the copy outlasts the second forward by half
  EXPECT_EQ(step("0F0,0O0,0F1,0R0,0B0,0B1").ranks[0].live_activations, 2);
  costs.recompute_s = {4};
  EXPECT_DOUBLE_EQ(step("0F0,0R0,0B0").step_s, 7);
}

TEST(ScheduleCheck, WantsExtraActionsInTheirPlaces) {
  EXPECT_EQ(why_refused("0R0,0F0,0B0"),
            "schedule s.csv: deadlock: rank 0 at 0R0 needs its own 0F0, which comes later; put one of them earlier");
  EXPECT_EQ(why_refused("0F0,0B0,0R0"), "schedule s.csv: 0R0 comes after 0B0; put it before");
  EXPECT_EQ(why_refused("0F0,0I0,0O0,0W0"), "schedule s.csv: 0O0 comes after 0I0; put it before");
  EXPECT_EQ(why_refused("0F0,0R0,0O0,0B0"), "schedule s.csv: 0O0 comes after 0R0; put it before");
  EXPECT_EQ(why_refused("0F0,0UNSHARD,0B0"), "schedule s.csv: 0UNSHARD comes after 0F0; put it before");
  EXPECT_EQ(why_refused("0F0,0I0,0REDUCE_GRAD,0W0"), "schedule s.csv: 0W0 comes after 0REDUCE_GRAD; put it before");
  EXPECT_EQ(why_refused("0F0,0R0,0R0,0B0"), "schedule s.csv: 0R0 is there twice; each action runs once");
  EXPECT_EQ(why_refused("0F0,0B0,0RESHARD"),
            "s.csv:1: cell 3, \"0RESHARD\": a stage's weights are released after its last action by themselves; leave out RESHARD");
  EXPECT_EQ(why_refused("0UNSHARD,0F0,0O0,0R0,0B0,0REDUCE_GRAD"), "it was read");
}

}  // namespace
}  // namespace cairn::parallel
