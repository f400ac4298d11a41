// The orders themselves, as their papers write them; that they run, at every size; and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "parallel/schedule.h"
#include "parallel/schedule/check.h"
#include "parallel/schedule/csv.h"
#include "parallel/schedule/timeline.h"

namespace cairn::parallel {
namespace {

std::string order_of(const ScheduleRequest& request) { return to_csv(make_schedule(request)); }

std::string why_refused(const ScheduleRequest& request) {
  try {
    make_schedule(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "nothing was refused";
}

// A forward, an input gradient and a weight gradient of a stage take 1 s each.
TimelineStats with_equal_parts(const ScheduleRequest& request) {
  const Schedule schedule = make_schedule(request);
  const double stages = schedule.stages() / schedule.ranks();
  return timeline_stats(timeline(schedule, even_costs(schedule, {stages, stages, stages})));
}

TEST(Schedules, GpipeRunsAllForwardsThenAllBackwardsFromTheLast) {
  EXPECT_EQ(order_of({.name = "gpipe", .ranks = 2, .micro_batches = 3}),
            "0F0,0F1,0F2,0B2,0B1,0B0\n"
            "1F0,1F1,1F2,1B2,1B1,1B0\n");
}

TEST(Schedules, OneForwardOneBackwardFillsThePipelineFirst) {
  EXPECT_EQ(order_of({.name = "1f1b", .ranks = 3, .micro_batches = 4}),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  EXPECT_EQ(order_of({.name = "1f1b", .ranks = 3, .micro_batches = 1}), "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
}

TEST(Schedules, InterleavedTakesTheStagesOfARankInGroupsOfMicroBatches) {
  EXPECT_EQ(order_of({.name = "interleaved", .ranks = 2, .stages_per_rank = 2, .micro_batches = 4}),
            "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
  // As many micro-batches as ranks: all forwards, then all backwards.
  EXPECT_EQ(order_of({.name = "interleaved", .ranks = 2, .stages_per_rank = 2, .micro_batches = 2}),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n");
}

TEST(Schedules, ZeroBubbleH1PutsWeightGradientsOffByTheRank) {
  EXPECT_EQ(order_of({.name = "zb_h1", .ranks = 3, .micro_batches = 4}),
            "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3\n"
            "1F0,1F1,1I0,1F2,1I1,1W0,1F3,1I2,1W1,1I3,1W2,1W3\n"
            "2F0,2I0,2F1,2I1,2F2,2I2,2W0,2F3,2I3,2W1,2W2,2W3\n");
}

TEST(Schedules, ZeroBubbleVGoesDownAndBack) {
  const Schedule schedule = make_schedule({.name = "zbv", .ranks = 2, .micro_batches = 3});
  EXPECT_EQ(schedule.rank_of_stage, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(to_csv(schedule),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2\n"
            "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2\n");
}

TEST(Schedules, DualPipeVRunsEachLegsForwardBesideTheOthersBackward) {
  EXPECT_EQ(order_of({.name = "dualpipev", .ranks = 2, .micro_batches = 4}),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,0F3,3B1,3F2,0B0,3B2,3F3,0B1,3B3,0I2,0W2,0I3,0W3\n"
            "1F0,2F0,1F1,2F1,1F2,2B0,2F2,1B0,1F3,2B1,2F3,1B1,2B2,1B2,2I3,1I3,2W3,1W3\n");
}

TEST(Schedules, RunAtEverySizeThatTheyTake) {
  for (const std::string& name : schedule_names())
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (const int micro_batches : {1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 24, 35})
        for (const int stages : {0, 3, 4}) {
          if (stages > 0 && name != "interleaved") continue;
          if (name == "interleaved" && micro_batches % ranks != 0) continue;
          if (name == "dualpipev" && micro_batches < 2 * ranks) continue;
          const Schedule schedule =
              make_schedule({.name = name, .ranks = ranks, .stages_per_rank = stages, .micro_batches = micro_batches});
          SCOPED_TRACE(name + " " + std::to_string(ranks) + " ranks, " + std::to_string(micro_batches) + " micro-batches");
          EXPECT_EQ(schedule.ranks(), ranks);
          EXPECT_NO_THROW(check(schedule));
        }
}

TEST(Schedules, ZeroBubbleH1HasAThirdOfTheBubbleAndNoMoreMemory) {
  for (const auto& [ranks, micro_batches] : {std::pair{2, 2}, {3, 5}, {4, 8}, {5, 5}, {8, 24}}) {
    const TimelineStats plain = with_equal_parts({.name = "1f1b", .ranks = ranks, .micro_batches = micro_batches});
    const TimelineStats zero = with_equal_parts({.name = "zb_h1", .ranks = ranks, .micro_batches = micro_batches});
    EXPECT_EQ(plain.step_s, 3 * micro_batches + 3 * (ranks - 1));
    EXPECT_EQ(zero.step_s, 3 * micro_batches + (ranks - 1));
    for (const RankTimelineStats& rank : zero.ranks) EXPECT_EQ(rank.live_activations, plain.ranks[0].live_activations);
  }
}

// Rank r cannot begin before r stages have run, so a step takes p-1 stages more than the work: the least a pipeline can. In between
// nobody waits.
TEST(Schedules, ZeroBubbleVWaitsNowhereWithTheMemoryOfOneForwardOneBackward) {
  for (const int ranks : {1, 2, 3, 4, 7, 8})
    for (const int micro_batches : {2 * ranks - 1, 2 * ranks, 3 * ranks + 2}) {
      const TimelineStats zero = with_equal_parts({.name = "zbv", .ranks = ranks, .micro_batches = micro_batches});
      EXPECT_EQ(zero.step_s, 6 * micro_batches + (ranks - 1));
      for (const RankTimelineStats& rank : zero.ranks) {
        EXPECT_EQ(rank.waiting_s, 0);
        EXPECT_EQ(rank.live_activations, 2 * ranks) << "half stages: as much as the p whole ones of 1f1b";
      }
    }
}

TEST(Schedules, ZeroBubbleVDoesWhatItCanWithFewMicroBatches) {
  std::vector<double> steps;
  for (int micro_batches = 1; micro_batches <= 7; ++micro_batches)
    steps.push_back(with_equal_parts({.name = "zbv", .ranks = 4, .micro_batches = micro_batches}).step_s);
  EXPECT_EQ(steps, (std::vector<double>{18, 21, 24, 29, 34, 39, 45}));
}

TEST(Schedules, DualPipeVTakesAsLongAndKeepsOneActivationMore) {
  for (const int ranks : {1, 2, 3, 4, 7, 8})
    for (const int micro_batches : {2 * ranks, 2 * ranks + 1, 5 * ranks}) {
      const TimelineStats dual = with_equal_parts({.name = "dualpipev", .ranks = ranks, .micro_batches = micro_batches});
      EXPECT_EQ(dual.step_s, 6 * micro_batches + (ranks - 1));
      for (const RankTimelineStats& rank : dual.ranks) EXPECT_EQ(rank.live_activations, 2 * ranks + 1);
    }
}

TEST(Schedules, DeclareWhetherTheySplitBackward) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule schedule = make_schedule({.name = kind.name, .ranks = 3, .micro_batches = 9});
    bool splits = false;
    for (const std::vector<Action>& list : schedule.actions)
      for (const Action& action : list) splits = splits || action.kind == ActionKind::backward_weight;
    EXPECT_EQ(splits, kind.splits_backward) << kind.name;
    EXPECT_EQ(schedule.stages(), 3 * kind.default_stages_per_rank) << kind.name;
  }
}

TEST(Schedules, RefuseWithWhatWouldWork) {
  EXPECT_EQ(why_refused({.name = "1f1v"}), "unknown pipeline schedule \"1f1v\": did you mean \"1f1b\"?");
  // What follows these names every schedule that would work.
  EXPECT_THAT(why_refused({.name = "interleaved", .ranks = 4, .micro_batches = 6}),
              testing::StartsWith("schedule interleaved: 6 micro-batches over 4 ranks: must be a multiple of the ranks. Use 4 or 8 "
                                  "micro-batches, or a schedule that takes any number: gpipe, 1f1b"));
  EXPECT_NE(why_refused({.name = "interleaved", .ranks = 4, .micro_batches = 3}).find("Use 4 micro-batches"), std::string::npos);
  EXPECT_THAT(why_refused({.name = "dualpipev", .ranks = 4, .micro_batches = 7}),
              testing::StartsWith("schedule dualpipev: 7 micro-batches over 4 ranks: must be at least 8, two for each rank. Use more, or a "
                                  "schedule that takes any number: gpipe, 1f1b"));
  EXPECT_THAT(why_refused({.name = "1f1b", .ranks = 4, .stages_per_rank = 2, .micro_batches = 8}),
              testing::StartsWith("schedule 1f1b with 2 stages per rank: it has 1 (1: gpipe, 1f1b"));
  EXPECT_NE(why_refused({.name = "interleaved", .ranks = 2, .stages_per_rank = 1, .micro_batches = 2}).find("it takes 2 to 1024"),
            std::string::npos);
  EXPECT_NE(why_refused({.name = "zbv", .ranks = 2, .stages_per_rank = -1, .micro_batches = 2}).find("-1 stages per rank: it has 2"),
            std::string::npos);
  EXPECT_EQ(why_refused({.name = "gpipe", .ranks = 0}), "schedule gpipe over 0 ranks: must be 1 to 4096");
  EXPECT_NE(why_refused({.name = "gpipe", .ranks = 4097}).find("4097 ranks"), std::string::npos);
  EXPECT_EQ(why_refused({.name = "gpipe", .micro_batches = 0}), "schedule gpipe of 0 micro-batches: must be at least 1");
  EXPECT_NE(
      why_refused({.name = "interleaved", .ranks = 4096, .stages_per_rank = 1024, .micro_batches = 2147479552}).find("at most 4194304"),
      std::string::npos);
}

}  // namespace
}  // namespace cairn::parallel
