// What cannot run is refused, with who waits for what.
#include <gtest/gtest.h>

#include "base/error.h"
#include "parallel/schedule/check.h"

namespace cairn::parallel::schedule_check_test {
namespace {

constexpr ActionKind F = ActionKind::forward, B = ActionKind::backward, I = ActionKind::backward_input, W = ActionKind::backward_weight;

// Two ranks, a stage each.
Schedule of_two(int micro_batches, std::vector<Action> first, std::vector<Action> second) {
  return {"by hand", micro_batches, {0, 1}, {std::move(first), std::move(second)}};
}

std::string why_it_cannot_run(const Schedule& schedule) {
  try {
    check(schedule);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "it can";
}

TEST(ScheduleCheck, TakesWhatRuns) {
  EXPECT_EQ(why_it_cannot_run(of_two(1, {{F, 0, 0}, {B, 0, 0}}, {{F, 1, 0}, {I, 1, 0}, {W, 1, 0}})), "it can");
}

TEST(ScheduleCheck, NamesTheRanksThatWaitForEachOther) {
  const Schedule stuck = of_two(2, {{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}}, {{F, 1, 0}, {F, 1, 1}, {B, 1, 0}, {B, 1, 1}});
  EXPECT_EQ(
      why_it_cannot_run(stuck),
      "schedule by hand: deadlock: rank 0 at 0B0 waits for 1B0 of rank 1, rank 1 at 1F1 waits for 0F1 of rank 0; put one of them earlier");
}

TEST(ScheduleCheck, LeavesThoseOutWhoOnlyWaitForTheCycle) {
  Schedule stuck{"by hand", 2, {0, 1, 2}, {}};
  stuck.actions = {{{F, 0, 0}, {F, 0, 1}, {B, 0, 0}, {B, 0, 1}},
                   {{F, 1, 0}, {B, 1, 0}, {F, 1, 1}, {B, 1, 1}},
                   {{F, 2, 1}, {F, 2, 0}, {B, 2, 0}, {B, 2, 1}}};
  EXPECT_EQ(
      why_it_cannot_run(stuck),
      "schedule by hand: deadlock: rank 1 at 1B0 waits for 2B0 of rank 2, rank 2 at 2F1 waits for 1F1 of rank 1; put one of them earlier");
}

TEST(ScheduleCheck, SeesARankThatWaitsForItself) {
  EXPECT_EQ(why_it_cannot_run({"by hand", 1, {0}, {{{B, 0, 0}, {F, 0, 0}}}}),
            "schedule by hand: deadlock: rank 0 at 0B0 needs its own 0F0, which comes later; put one of them earlier");
  EXPECT_NE(why_it_cannot_run({"by hand", 1, {0}, {{{F, 0, 0}, {W, 0, 0}, {I, 0, 0}}}}).find("rank 0 at 0W0 needs its own 0I0"),
            std::string::npos);
}

TEST(ScheduleCheck, ShortensALongCycle) {
  // Each rank wants the gradient of the first micro-batch before it passes the second on; the last wants the second first.
  constexpr int kRanks = 20;
  Schedule stuck{"by hand", 2, {}, {}};
  for (int rank = 0; rank < kRanks; ++rank) {
    stuck.rank_of_stage.push_back(rank);
    stuck.actions.push_back(rank + 1 < kRanks ? std::vector<Action>{{F, rank, 0}, {B, rank, 0}, {F, rank, 1}, {B, rank, 1}}
                                              : std::vector<Action>{{F, rank, 0}, {F, rank, 1}, {B, rank, 0}, {B, rank, 1}});
  }
  const std::string said = why_it_cannot_run(stuck);
  EXPECT_NE(said.find("rank 18 at 18B0 waits for 19B0 of rank 19, rank 19 at 19F1 waits for 18F1 of rank 18"), std::string::npos) << said;
  // A ring of all ranks: rank r's stage waits for that of r+1, and the last stage's rank for the first.
  Schedule ring{"ring", 1, {}, {}};
  for (int rank = 0; rank < kRanks; ++rank) {
    ring.rank_of_stage.push_back(rank);
    ring.actions.push_back({{F, rank, 0}, {B, rank, 0}});
  }
  for (int stage = kRanks; stage < 2 * kRanks; ++stage) {
    const int rank = stage - kRanks;
    ring.rank_of_stage.push_back(rank);
    ring.actions[rank].insert(ring.actions[rank].begin(), {{F, stage, 0}, {B, stage, 0}});
  }
  const std::string around = why_it_cannot_run(ring);
  EXPECT_NE(around.find("(12 more)"), std::string::npos) << around;
}

TEST(ScheduleCheck, WantsEverythingOnce) {
  const std::vector<Action> good = {{F, 1, 0}, {B, 1, 0}};
  const std::string needs_all = "; each of the 2 stages needs a forward and a backward of each of the 1 micro-batches";
  EXPECT_EQ(why_it_cannot_run(of_two(1, {{B, 0, 0}}, good)), "schedule by hand: 0F0 is missing" + needs_all);
  EXPECT_EQ(why_it_cannot_run(of_two(1, {{F, 0, 0}}, good)), "schedule by hand: 0B0 (or 0I0 and 0W0) is missing" + needs_all);
  EXPECT_EQ(why_it_cannot_run(of_two(1, {{F, 0, 0}, {I, 0, 0}}, good)), "schedule by hand: 0I0 has no 0W0" + needs_all);
  EXPECT_EQ(why_it_cannot_run(of_two(1, {{F, 0, 0}, {W, 0, 0}}, good)), "schedule by hand: 0W0 has no 0I0" + needs_all);
  EXPECT_EQ(why_it_cannot_run(of_two(1, {{F, 0, 0}, {B, 0, 0}, {F, 0, 0}}, good)),
            "schedule by hand: 0F0 is there twice; each action runs once");
  EXPECT_EQ(why_it_cannot_run(of_two(1, {{F, 0, 0}, {B, 0, 0}, {W, 0, 0}}, good)),
            "schedule by hand: 0B0 is both gradients, and 0W0 is there too; leave out one");
}

TEST(ScheduleCheck, WantsActionsWhereTheRouteSays) {
  const std::vector<Action> first = {{F, 0, 0}, {B, 0, 0}}, second = {{F, 1, 0}, {B, 1, 0}};
  EXPECT_EQ(why_it_cannot_run(of_two(1, second, first)), "schedule by hand: 1F0 on rank 0: stage 1 is on rank 1");
  EXPECT_EQ(why_it_cannot_run(of_two(1, {{F, 2, 0}}, second)), "schedule by hand: 2F0 on rank 0: stages are 0 to 1");
  EXPECT_EQ(why_it_cannot_run(of_two(1, {{F, 0, 1}}, second)), "schedule by hand: 0F1 on rank 0: micro-batches are 0 to 0");
  EXPECT_EQ(why_it_cannot_run({"by hand", 1, {0, 2}, {first, second}}), "schedule by hand: stage 1 is on rank 2; ranks are 0 to 1");
  EXPECT_EQ(why_it_cannot_run({"by hand", 1, {0}, {first, {}}}), "schedule by hand: rank 1 runs no stage; use fewer ranks, or give it one");
  EXPECT_EQ(why_it_cannot_run({"by hand", 1, {}, {}}), "schedule by hand: 0 ranks; must be 1 to 4096");
  EXPECT_EQ(why_it_cannot_run({"by hand", 0, {0}, {first}}), "schedule by hand: 0 micro-batches; must be at least 1");
}

}  // namespace
}  // namespace cairn::parallel::schedule_check_test
