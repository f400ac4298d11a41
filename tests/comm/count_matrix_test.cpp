#include "comm/count_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using ::testing::HasSubstr;

std::string refusal(const CountMatrix& matrix, const std::vector<int64_t>& rows) {
  try {
    check(matrix, rows);
  } catch (const Error& error) {
    return error.sentence();
  }
  return "";
}

TEST(CountMatrix, SaysWhatEachRankSendsAndReceives) {
  const CountMatrix matrix{3, {0, 1, 2, 3, 4, 5, 6, 7, 8}};
  EXPECT_EQ(matrix.at(1, 2), 5);
  EXPECT_EQ(matrix.sent_by(1), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(matrix.received_by(1), (std::vector<int64_t>{1, 4, 7}));
  EXPECT_EQ(refusal(matrix, {3, 12, 21}), "");
}

TEST(CountMatrix, RefusesWhatDoesNotAddUpAndNamesTheRank) {
  const CountMatrix matrix{2, {1, 2, 3, 4}};
  EXPECT_THAT(refusal(matrix, {3, 8}), HasSubstr("rank 1 announces 7 rows and has 8. No row was sent."));
  EXPECT_THAT(refusal({2, {1, 2, -3, 10}}, {3, 7}), HasSubstr("rank 1 announces -3 rows for rank 0"));
  EXPECT_THAT(refusal({2, {1, 2, 3, INT64_MAX}}, {3, 7}), HasSubstr("rank 1 announces 9223372036854775807 rows for rank 1"));
  EXPECT_THAT(refusal({2, {int64_t{1} << 39, int64_t{1} << 39, 1, 0}}, {int64_t{1} << 40, 1}), HasSubstr("more than"));
  EXPECT_THAT(refusal({2, {1, 2, 3}}, {3, 3}), HasSubstr("3 counts and 2 totals for 2 ranks"));
}

TEST(CountMatrix, IsTheSameOnAllRanks) {
  harness::on_ranks(3, [](World& world) {
    const int me = world.rank();
    const std::vector<int64_t> counts{me, 10 * me, 0};
    const CountMatrix matrix = exchange_counts(world.everyone(), counts, 11 * me, {Purpose::control, "counts"});
    EXPECT_EQ(matrix, (CountMatrix{3, {0, 0, 0, 1, 10, 0, 2, 20, 0}}));
  });
}

TEST(CountMatrix, AllRanksRefuseAlikeBeforeAnyRowIsSent) {
  const harness::Run run = harness::on_ranks(3, {.expect_errors = true}, [](World& world) {
    const std::vector<int64_t> counts{1, 1, 1};
    exchange_counts(world.everyone(), counts, world.rank() == 2 ? 4 : 3, {Purpose::control, "counts"});
    world.everyone().barrier().wait();
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(run.error_on(rank).sentence(), HasSubstr("rank 2 announces 3 rows and has 4")) << rank;
}

}  // namespace
}  // namespace cairn::comm
