// Which of several ranks called something else, by their reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/collectives/mismatch.h"

namespace cairn::comm {
namespace {

using testing::HasSubstr;

Envelope of(int64_t count) {
  return {.sequence = 5, .signature = {.kind = OperationKind::all_reduce, .dtype = Dtype::f32, .count = count}};
}

bool nobody(int) { return false; }

TEST(CollectiveMismatch, NobodyIsNamedOnFewerReportsThanMoreThanHalf) {
  CollectiveMismatch four({0, 1, 2, 3}, 0, of(10));
  EXPECT_FALSE(four.decide(nobody));
  four.hear(3, of(9));
  EXPECT_FALSE(four.decide(nobody));
  four.hear(2, of(10));
  EXPECT_FALSE(four.decide(nobody)) << "the last may say 9 too";
  four.hear(1, of(10));
  ASSERT_TRUE(four.decide(nobody));
  EXPECT_EQ(four.decide(nobody)->peer(), 3);
  EXPECT_STREQ(
      four.decide(nobody)->what(),
      "rank 3 called all_reduce, 9 f32 where rank 0 called all_reduce, 10 f32: all ranks of a group must start the same operations "
      "in the same order (operation 5 of ranks 0 1 2 3)");
}

TEST(CollectiveMismatch, MoreThanHalfNeedNotWaitForTheRest) {
  CollectiveMismatch seven({0, 1, 2, 3, 4, 5, 6}, 6, of(10));
  for (const int rank : {1, 2, 3}) seven.agrees(rank);
  EXPECT_FALSE(seven.decide(nobody)) << "who is the odd one is not known";
  seven.hear(4, of(9));
  ASSERT_TRUE(seven.decide(nobody));
  EXPECT_EQ(seven.decide(nobody)->peer(), 4);
}

TEST(CollectiveMismatch, TheOddOneNamesItself) {
  CollectiveMismatch three({4, 7, 9}, 7, of(10));
  three.hear(9, of(9));
  EXPECT_FALSE(three.decide(nobody));
  three.hear(4, of(9));
  ASSERT_TRUE(three.decide(nobody));
  EXPECT_EQ(three.decide(nobody)->peer(), 7);
  EXPECT_THAT(three.decide(nobody)->what(), HasSubstr("rank 4 called all_reduce, 9 f32 where rank 7 called all_reduce, 10 f32"));
}

TEST(CollectiveMismatch, OfTwoEachNamesTheOther) {
  for (const int me : {0, 1}) {
    CollectiveMismatch two({0, 1}, me, of(10));
    two.hear(1 - me, of(9));
    ASSERT_TRUE(two.decide(nobody));
    EXPECT_EQ(two.decide(nobody)->peer(), 1 - me);
  }
}

TEST(CollectiveMismatch, WhoHasLeftIsNotWaitedFor) {
  CollectiveMismatch three({0, 1, 2}, 0, of(10));
  three.hear(2, of(9));
  const auto one_left = [](int rank) { return rank == 1; };
  ASSERT_TRUE(three.decide(one_left));
  EXPECT_EQ(three.decide(one_left)->peer(), 2);
  EXPECT_FALSE(three.undecided(one_left, std::chrono::seconds(1)));
}

TEST(CollectiveMismatch, TheFirstReportOfARankCounts) {
  CollectiveMismatch two({0, 1, 2}, 0, of(10));
  two.hear(1, of(10));
  two.hear(1, of(9));
  two.hear(0, of(9));
  EXPECT_FALSE(two.decide(nobody));
}

TEST(CollectiveMismatch, WhoKeepsSilentIsNamedAtTheDeadline) {
  CollectiveMismatch five({0, 1, 2, 3, 4}, 0, of(10));
  EXPECT_FALSE(five.undecided(nobody, std::chrono::seconds(30))) << "that others differ is not known";
  five.hear(1, of(9));
  const auto error = five.undecided([](int rank) { return rank == 3; }, std::chrono::seconds(30));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->peer(), 2);
  EXPECT_STREQ(
      error->what(),
      "rank 2, 4 lost: silent for 30.0 s, and who of the others is wrong cannot be told: rank 1 called all_reduce, 9 f32 where rank "
      "0 called all_reduce, 10 f32: all ranks of a group must start the same operations in the same order (operation 5 of ranks 0 1 "
      "2 3 4)");
}

}  // namespace
}  // namespace cairn::comm
