// Steps in virtual time against the closed forms of the papers.
#include "parallel/schedule/timeline.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/error.h"
#include "parallel/schedule/csv.h"

namespace cairn::parallel {
namespace {

// A rank's share of the model takes 20 ms forward and 40 ms backward.
TimelineStats step_of(const ScheduleRequest& request) {
  const Schedule schedule = make_schedule(request);
  return timeline_stats(timeline(schedule, even_costs(schedule, {.forward_s = 20, .backward_input_s = 20, .backward_weight_s = 20})));
}

std::vector<int> live_activations(const TimelineStats& figures) {
  std::vector<int> live;
  for (const RankTimelineStats& rank : figures.ranks) live.push_back(rank.live_activations);
  return live;
}

TEST(Timeline, GpipeAndOneForwardOneBackwardHaveTheBubbleOfTheFormula) {
  for (const char* name : {"gpipe", "1f1b"})
    for (const auto& [micro_batches, ratio] : {std::pair{4, 1.75}, {8, 1.375}, {16, 1.1875}}) {
      const TimelineStats step = step_of({.name = name, .ranks = 4, .micro_batches = micro_batches});
      EXPECT_EQ(step.step_s / (micro_batches * 60), ratio);
      EXPECT_EQ(step.step_to_ideal, ratio);
      EXPECT_DOUBLE_EQ(step.bubble, 3.0 / (micro_batches + 3));
      for (const RankTimelineStats& rank : step.ranks) EXPECT_DOUBLE_EQ(rank.bubble, step.bubble);
    }
}

TEST(Timeline, InterleavingDividesTheBubbleByTheStagesOfARank) {
  const auto ratio = [](int stages, int micro_batches) {
    return step_of({.name = "interleaved", .ranks = 4, .stages_per_rank = stages, .micro_batches = micro_batches}).step_to_ideal;
  };
  EXPECT_EQ(ratio(2, 8), 1.1875);
  EXPECT_EQ(ratio(2, 16), 1.09375);
  EXPECT_EQ(ratio(4, 16), 1.046875);
}

TEST(Timeline, CountsWhatIsAlive) {
  EXPECT_EQ(live_activations(step_of({.name = "1f1b", .ranks = 4, .micro_batches = 8})), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(live_activations(step_of({.name = "1f1b", .ranks = 4, .micro_batches = 2})), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(live_activations(step_of({.name = "gpipe", .ranks = 3, .micro_batches = 7})), (std::vector<int>{7, 7, 7}));
  const TimelineStats interleaved = step_of({.name = "interleaved", .ranks = 4, .stages_per_rank = 2, .micro_batches = 8});
  EXPECT_EQ(live_activations(interleaved), (std::vector<int>{11, 9, 7, 5}));
  EXPECT_EQ(interleaved.ranks[0].live_micro_batches, 8);  // 0 to 3 still have their first stage alive when 4 to 7 begin
  for (const auto& [ranks, stages] : {std::pair{2, 2}, {3, 2}, {4, 4}, {5, 3}}) {
    const TimelineStats step = step_of({.name = "interleaved", .ranks = ranks, .stages_per_rank = stages, .micro_batches = 3 * ranks});
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(step.ranks[rank].live_activations, 2 * (ranks - rank - 1) + (stages - 1) * ranks + 1);
  }
}

TEST(Timeline, SaysWhenEachActionRuns) {
  // Unequal stages, 1 s and 2 s forward, and messages that take half a second.
  const Schedule schedule = make_schedule({.name = "1f1b", .ranks = 2, .micro_batches = 2});
  const Timeline planned = timeline(schedule, {{1, 2}, {2, 3}, {0, 1}, 0.5});
  constexpr ActionKind F = ActionKind::forward, B = ActionKind::backward;
  EXPECT_EQ(planned.ranks[0], (std::vector<TimedAction>{{{F, 0, 0}, 0, 1}, {{F, 0, 1}, 1, 2}, {{B, 0, 0}, 8, 10}, {{B, 0, 1}, 14, 16}}));
  EXPECT_EQ(planned.ranks[1],
            (std::vector<TimedAction>{{{F, 1, 0}, 1.5, 3.5}, {{B, 1, 0}, 3.5, 7.5}, {{F, 1, 1}, 7.5, 9.5}, {{B, 1, 1}, 9.5, 13.5}}));
  const TimelineStats step = timeline_stats(planned);
  EXPECT_EQ(step.step_s, 16);
  EXPECT_DOUBLE_EQ(step.bubble, (2 * 16.0 - 6 - 12) / (2 * 16.0));
  EXPECT_DOUBLE_EQ(step.step_to_ideal, 16.0 / 12);
  EXPECT_DOUBLE_EQ(step.ranks[0].bubble, 10.0 / 16);
  EXPECT_EQ(step.ranks[0].waiting_s, 10);
  EXPECT_EQ(step.ranks[1].waiting_s, 0);
}

TEST(Timeline, KeepsAnActivationUntilItsWeightGradient) {
  const Schedule schedule = read_schedule_csv("0F0,0I0,0F1,0I1,0W0,0W1", "s.csv");
  const TimelineStats step = timeline_stats(timeline(schedule, even_costs(schedule, {})));
  EXPECT_EQ(step.ranks[0].live_activations, 2);
  EXPECT_EQ(step.ranks[0].live_micro_batches, 2);
}

// Transfers that are shorter than a forward hide behind it but for the first fill and the last drain.
TEST(Timeline, HidesTransfersBehindWork) {
  const Schedule schedule = make_schedule({.name = "gpipe", .ranks = 4, .micro_batches = 16});
  const RankCosts costs{.forward_s = 20, .backward_input_s = 20, .backward_weight_s = 20, .transfer_s = 5};
  EXPECT_EQ(timeline_stats(timeline(schedule, even_costs(schedule, costs))).step_s, 16 * 60 + 3 * 60 + 2 * 3 * 5);
}

TEST(Timeline, IsMeasuredFromItsFirstActionOn) {
  Timeline measured{"measured", 1, {0, 1}, {}};
  measured.ranks = {{{{ActionKind::forward, 0, 0}, 100, 101}, {{ActionKind::backward, 0, 0}, 104, 106}},
                    {{{ActionKind::forward, 1, 0}, 101.5, 102.5}, {{ActionKind::backward, 1, 0}, 102.5, 104}}};
  const TimelineStats step = timeline_stats(measured);
  EXPECT_EQ(step.step_s, 6);
  EXPECT_DOUBLE_EQ(step.bubble, (12 - 3 - 2.5) / 12);
  EXPECT_EQ(step.ranks[0].waiting_s, 3);
  EXPECT_EQ(timeline_stats(Timeline{}).step_s, 0);
}

TEST(Timeline, RefusesCostsThatAreNotThoseOfTheStages) {
  const Schedule schedule = make_schedule({.name = "1f1b", .ranks = 2, .micro_batches = 1});
  const auto why = [&](const StageCosts& costs) -> std::string {
    try {
      timeline(schedule, costs);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_EQ(why({{1}, {1, 1}, {1, 1}, 0}), "schedule 1f1b: 1 costs of the forward, it has 2 stages");
  EXPECT_EQ(why({{1, 1}, {1, 1, 1}, {1, 1}, 0}), "schedule 1f1b: 3 costs of the input gradient, it has 2 stages");
  EXPECT_EQ(why({{1, 1}, {1, 1}, {1, -2}, 0}), "the weight gradient of stage 1 costs -2 s: must be a number, 0 or more");
  EXPECT_EQ(why({{1, 1}, {1, 1}, {1, 1}, -1}), "a transfer takes -1 s: must be a number, 0 or more");
  EXPECT_EQ(why({{1, NAN}, {1, 1}, {1, 1}, 0}), "the forward of stage 1 costs nan s: must be a number, 0 or more");
}

}  // namespace
}  // namespace cairn::parallel
