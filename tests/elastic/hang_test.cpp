#include "elastic/diagnosis/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_ranks.h"

namespace cairn::elastic {
namespace {

using namespace std::chrono_literals;
using comm::Activity;
using comm::OperationKind;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kAll = 10, kPipe = 20, kOther = 30;

std::vector<Finding> hang_of(const FakeRanks& fake, const DiagnosisOptions& options = {}) { return find_hang(fake.views, options); }

// Three ranks in an all_reduce that the fourth has not entered for `idle`.
FakeRanks one_missing(Activity activity, std::chrono::nanoseconds idle) {
  FakeRanks fake(4);
  fake.group(kAll, {0, 1, 2, 3}, "dp");
  for (const int rank : {0, 1, 3}) fake.enter_and_wait(rank, kAll, 100s - idle);
  fake.idle(2, activity, 100s - idle);
  return fake;
}

TEST(Hang, NamesTheRankThatHasNotEntered) {
  const auto found = hang_of(one_missing(Activity::computing, 6s));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::stuck);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].host, "node0");
  EXPECT_THAT(found[0].victims, ElementsAre(0, 1, 3));
  EXPECT_THAT(found[0].operation, HasSubstr("all_reduce of x, 4096 bytes (operation 0 of dp: ranks 0 1 2 3)"));
  EXPECT_THAT(to_line(found[0]), HasSubstr("stuck: rank 2 on node0: alive, in forward and backward of step 30 for 6.0 s"));
}

TEST(Hang, ARankThatWaitsForDataIsLateData) {
  const auto found = hang_of(one_missing(Activity::loading, 6s));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::late_data);
}

TEST(Hang, AShortWaitIsNone) { EXPECT_TRUE(hang_of(one_missing(Activity::computing, 4s)).empty()); }

TEST(Hang, SavingAndEvaluatingMayTakeLonger) {
  EXPECT_TRUE(hang_of(one_missing(Activity::saving, 20s)).empty());
  EXPECT_TRUE(hang_of(one_missing(Activity::evaluating, 20s)).empty());
  EXPECT_EQ(hang_of(one_missing(Activity::saving, 61s)).size(), 1u);
  EXPECT_TRUE(hang_of(one_missing(Activity::starting, 90s)).empty());
}

TEST(Hang, TheFirstStepMayTakeLonger) {
  FakeRanks fake = one_missing(Activity::computing, 20s);
  fake.log(2).step = 1;
  fake.log(2).steps.clear();
  EXPECT_TRUE(hang_of(fake).empty());
}

TEST(Hang, AWaitThatIsUsualForThisOperationIsNone) {
  FakeRanks fake = one_missing(Activity::computing, 6s);
  for (const int rank : {0, 1, 3}) {
    auto& open = fake.log(rank).operations;
    comm::FlightLog::Operation before = open.front();
    before.ended = before.entered + 1s;  // ten times this is 10 s
    open.front().number = 1;
    open.insert(open.begin(), before);
    fake.log(rank).waiting = 1;
  }
  EXPECT_TRUE(hang_of(fake).empty());
}

TEST(Hang, ARankThatEndedItsWaitJustNowIsNotBlamed) {
  FakeRanks fake = one_missing(Activity::computing, 6s);
  fake.enter(2, kOther, 99500ms, /*done=*/true);
  EXPECT_TRUE(hang_of(fake).empty());
}

// rank 0 waits for 1 (tp), 1 for 3 (pp, a message), 3 for 5 (dp); 5 is stuck. All but 5 look hung.
TEST(Hang, FollowsTheChainOverSeveralGroups) {
  FakeRanks fake(8);
  fake.group(1, {0, 1}, "tp");
  fake.group(2, {1, 3}, "pp");
  fake.group(3, {3, 5}, "dp");
  fake.group(4, {0, 2, 4, 6, 7}, "all");
  fake.enter_and_wait(0, 1, 94s);
  fake.message(1, 2, 3, /*sends=*/false, 7, 93s);
  fake.wait(1, 93s);
  fake.enter_and_wait(3, 3, 92s);
  fake.idle(5, Activity::computing, 91s);
  for (const int rank : {2, 4, 6, 7}) fake.enter_and_wait(rank, 4, 94s);
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 5);
  EXPECT_EQ(found[0].cause, Cause::stuck);
  EXPECT_THAT(found[0].victims, ElementsAre(0, 1, 2, 3, 4, 6, 7));
  EXPECT_THAT(found[0].operation, HasSubstr("dp: ranks 3 5"));
}

// A pipeline of four stages: the last one is stuck, and each stage waits for the gradients of the next.
TEST(Hang, InAPipelineOnlyTheEndIsBlamed) {
  FakeRanks fake(4);
  fake.group(kPipe, {0, 1, 2, 3}, "pp");
  for (int rank = 0; rank < 3; ++rank) {
    fake.message(rank, kPipe, rank + 1, /*sends=*/true, 3, 90s, /*done=*/true);
    fake.message(rank, kPipe, rank + 1, /*sends=*/false, 3, 93s);
    fake.wait(rank, 93s);
  }
  fake.idle(3, Activity::computing, 93s);
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 3);
  EXPECT_THAT(found[0].victims, ElementsAre(0, 1, 2));
}

TEST(Hang, ASenderWaitsForAReceiverThatDoesNotReceive) {
  FakeRanks fake(2);
  fake.group(kPipe, {0, 1});
  fake.message(0, kPipe, 1, /*sends=*/true, 0, 93s);
  fake.wait(0, 93s);
  fake.idle(1, Activity::computing, 93s);
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
}

// Rank 1 started an all_reduce and computes on without waiting for it: nobody moves its data.
TEST(Hang, ARankThatEnteredAndLeftItUndrivenIsBlamed) {
  FakeRanks fake(2);
  fake.group(kAll, {0, 1});
  fake.enter_and_wait(0, kAll, 93s);
  fake.enter(1, kAll, 93s);
  fake.idle(1, Activity::computing, 93s);
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_THAT(found[0].evidence, HasSubstr("no wait for what it has started"));
}

// All have entered and wait, but rank 2 has not looked whether its wait is over for 8 s: its thread stands still.
TEST(Hang, ARankThatIsStoppedInTheMiddleOfAWaitIsBlamed) {
  FakeRanks fake(4);
  fake.group(kAll, {0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) fake.enter_and_wait(rank, kAll, 92s);
  EXPECT_TRUE(hang_of(fake).empty());
  fake.log(2).wait_seen = 92s;
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::stuck);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_THAT(found[0].evidence, HasSubstr("in the middle of a wait"));
}

TEST(Hang, AFrozenRankIsNamedAtOnce) {
  FakeRanks fake(4);
  fake.group(kAll, {0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) fake.enter_and_wait(rank, kAll, 97500ms);
  fake.views[1].liveness = Liveness::frozen;
  fake.views[1].how = "its process stands still";
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::frozen);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_THAT(found[0].evidence, HasSubstr("its process stands still, step 30, last in a wait for all_reduce of x"));
}

// The survivors have given up and ended before the agent looked.
TEST(Hang, ADeadRankIsNamedAfterTheOthersHaveGivenUp) {
  FakeRanks fake(3);
  fake.group(kAll, {0, 1, 2});
  for (const int rank : {0, 2}) {
    fake.enter_and_wait(rank, kAll, 99s);
    fake.log(rank).operations.back().ended = 99200ms;
    fake.log(rank).operations.back().failed = true;
    fake.views[static_cast<size_t>(rank)].liveness = Liveness::ended;
  }
  fake.views[1].liveness = Liveness::dead;
  fake.views[1].how = "was killed by signal 9 (SIGKILL)";
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::dead);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_THAT(found[0].victims, ElementsAre(0, 2));
}

TEST(Hang, RanksWithoutRecordsAreNamedIfAllWaitForThem) {
  FakeRanks fake = one_missing(Activity::computing, 6s);
  fake.views[2].log.reset();
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_THAT(found[0].evidence, HasSubstr("no records"));
  fake.views.erase(fake.views.begin() + 2);  // a machine that was never heard of
  EXPECT_EQ(hang_of(fake).at(0).rank, 2);
}

// All have entered, and what rank 2 sent to rank 0 does not arrive.
TEST(Hang, NamesAPathOnWhichNothingMoves) {
  FakeRanks fake(3);
  fake.group(kAll, {0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) fake.enter_and_wait(rank, kAll, 92s);
  auto& got = fake.peer(0, 2);
  got.received_bytes = 500;
  got.awaited = 1;
  got.last_progress = 92s;
  fake.peer(2, 0).posted_bytes = 900;
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::stalled_path);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].peer, 0);
  EXPECT_THAT(found[0].evidence, HasSubstr("900 bytes were sent and 500 have arrived"));
}

TEST(Hang, ASentMessageThatNeverArrivesIsAPath) {
  FakeRanks fake(2);
  fake.group(kPipe, {0, 1});
  fake.message(0, kPipe, 1, /*sends=*/true, 4, 90s, /*done=*/true);
  fake.message(0, kPipe, 1, /*sends=*/false, 4, 93s);
  fake.wait(0, 93s);
  fake.message(1, kPipe, 0, /*sends=*/false, 4, 92s);
  fake.wait(1, 92s);
  fake.peer(1, 0).awaited = 1;
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::stalled_path);
  EXPECT_EQ(found[0].rank, 0);
  EXPECT_EQ(found[0].peer, 1);
}

TEST(Hang, RanksThatWaitForEachOtherAreADeadlock) {
  FakeRanks fake(2);
  fake.group(kAll, {0, 1}, "dp");
  fake.group(kOther, {0, 1}, "tp");
  fake.enter_and_wait(0, kAll, 93s);
  fake.enter_and_wait(1, kOther, 93s);
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::deadlock);
  EXPECT_THAT(found[0].victims, ElementsAre(0, 1));
  EXPECT_THAT(found[0].evidence, HasSubstr("rank 1 in all_reduce of x"));
}

TEST(Hang, InABroadcastNobodyWaitsForAnotherReceiver) {
  FakeRanks fake(3);
  fake.group(kAll, {0, 1, 2});
  fake.enter(2, kAll, 93s, /*done=*/false, OperationKind::broadcast).peer = 0;
  fake.wait(2, 93s);
  fake.idle(0, Activity::computing, 93s);
  fake.idle(1, Activity::computing, 90s);
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 0);
}

TEST(Hang, ClocksOfDifferentHostsAreNotCompared) {
  FakeRanks fake = one_missing(Activity::computing, 6s);
  fake.views[2].now += 1000h;
  fake.log(2).activity_since += 1000h;
  const auto found = hang_of(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].evidence, HasSubstr("for 6.0 s"));
}

TEST(Hang, NothingAtAllIsNone) {
  EXPECT_TRUE(find_hang({}, {}).empty());
  EXPECT_TRUE(hang_of(FakeRanks(5)).empty());
}

}  // namespace
}  // namespace cairn::elastic
