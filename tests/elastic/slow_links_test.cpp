#include "elastic/diagnosis/slow_links.h"

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_ranks.h"

namespace cairn::elastic {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// Every pair sends 70 messages of 64 KB; times(x, y, i) is the service time in microseconds of message i.
FakeRanks all_pairs(int n, const std::function<double(int, int, int)>& times) {
  FakeRanks fake(n);
  for (auto& view : fake.views) view.host = "node";
  for (int x = 0; x < n; ++x)
    for (int i = 0; i < 70; ++i)
      for (int y = 0; y < n; ++y)
        if (y != x) fake.log(x).messages.push_back({y, 64 << 10, 1s, std::chrono::nanoseconds(static_cast<int64_t>(1e3 * times(x, y, i)))});
  return fake;
}

double jitter(int x, int y, int i) { return 1000 * (1 + 0.1 * std::sin(x * 7.3 + y * 3.1 + i)); }

std::vector<Finding> found_in(const FakeRanks& fake) { return find_slow_links(fake.views, {}); }

TEST(SlowLinks, EqualLinksAreFine) {
  EXPECT_TRUE(found_in(all_pairs(5, jitter)).empty());
  EXPECT_TRUE(found_in(all_pairs(2, jitter)).empty());
}

TEST(SlowLinks, OneCellIsAPath) {
  const auto found = found_in(all_pairs(5, [](int x, int y, int i) { return jitter(x, y, i) * (x == 3 && y == 1 ? 3 : 1); }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::slow_path);
  EXPECT_EQ(found[0].rank, 3);
  EXPECT_EQ(found[0].peer, 1);
}

TEST(SlowLinks, ARowIsTheSender) {
  const auto found = found_in(all_pairs(7, [](int x, int y, int i) { return jitter(x, y, i) * (x == 3 ? 3 : 1); }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::slow_sender);
  EXPECT_EQ(found[0].rank, 3);
  EXPECT_THAT(found[0].evidence, HasSubstr("6 of 6 paths from it"));
}

TEST(SlowLinks, AColumnIsTheReceiver) {
  const auto found = found_in(all_pairs(3, [](int x, int y, int i) { return jitter(x, y, i) * (y == 0 ? 3 : 1); }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::slow_receiver);
  EXPECT_EQ(found[0].rank, 0);
}

TEST(SlowLinks, RowAndColumnAreTheNetworkCard) {
  const auto found = found_in(all_pairs(6, [](int x, int y, int i) { return jitter(x, y, i) * (x == 2 || y == 2 ? 3 : 1); }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::slow_nic);
  EXPECT_EQ(found[0].rank, 2);
}

TEST(SlowLinks, OfTwoRanksTheSlowerDirectionIsThePath) {
  const auto found = found_in(all_pairs(2, [](int x, int y, int i) { return jitter(x, y, i) * (x == 1 ? 3 : 1); }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::slow_path);
  EXPECT_EQ(found[0].rank, 1);
}

TEST(SlowLinks, OneSlowWindowOfThreeIsNotEnough) {
  EXPECT_TRUE(found_in(all_pairs(5, [](int x, int y, int i) { return jitter(x, y, i) * (x == 3 && i >= 50 ? 3 : 1); })).empty());
  EXPECT_TRUE(found_in(all_pairs(5, [](int x, int y, int i) { return jitter(x, y, i) * (x == 3 && i < 50 ? 3 : 1); })).empty());
}

TEST(SlowLinks, MicrosecondsDoNotMatter) {
  EXPECT_TRUE(found_in(all_pairs(5, [](int x, int y, int i) { return jitter(x, y, i) / 100 * (x == 3 ? 3 : 1); })).empty());
}

TEST(SlowLinks, OutliersDoNotMatter) {
  EXPECT_TRUE(found_in(all_pairs(5, [](int x, int y, int i) { return jitter(x, y, i) * (x == 3 && i % 3 == 0 ? 50 : 1); })).empty());
}

// Links between machines are slower than those within one: each is compared with its own kind.
TEST(SlowLinks, LinksBetweenMachinesAreComparedWithEachOther) {
  const auto times = [](int x, int y, int i) { return jitter(x, y, i) * (x / 3 != y / 3 ? 10 : 1); };
  FakeRanks fake = all_pairs(6, times);
  for (auto& view : fake.views) view.host = view.rank < 3 ? "a" : "b";
  EXPECT_TRUE(found_in(fake).empty());
}

// A pair that sends long messages is compared with pairs that send as long ones.
TEST(SlowLinks, SizesAreComparedWithTheSameSize) {
  FakeRanks fake = all_pairs(4, jitter);
  for (auto& view : fake.views)
    for (auto& message : view.log->messages)
      if (view.rank + message.peer == 3) message.bytes *= 16, message.service *= 9;
  EXPECT_TRUE(found_in(fake).empty());
}

TEST(SlowLinks, MissingRecordsLeaveCellsOpen) {
  FakeRanks fake = all_pairs(5, [](int x, int y, int i) { return jitter(x, y, i) * (y == 4 ? 3 : 1); });
  fake.views[2].log.reset();
  const auto found = found_in(fake);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::slow_receiver);
  const DelayMatrix matrix = delay_matrix(fake.views, 20);
  EXPECT_TRUE(std::isnan(matrix.ratio[matrix.at(2, 0)]));
  EXPECT_THAT(to_text(matrix), HasSubstr("     2     -     -     -     -     -"));
}

TEST(SlowLinks, NoMessagesAreNoMatrix) {
  const DelayMatrix matrix = delay_matrix(FakeRanks(3).views, 20);
  EXPECT_TRUE(matrix.empty());
  EXPECT_EQ(to_text(matrix), "");
}

}  // namespace
}  // namespace cairn::elastic
