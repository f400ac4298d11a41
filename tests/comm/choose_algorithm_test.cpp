// Which algorithm is chosen where, and what each costs.
#include "comm/collectives/choose_algorithm.h"

#include <gtest/gtest.h>

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;

constexpr Chunking kPieces{.bytes = 1 << 20, .in_flight = 4};

TEST(Choice, UpToEightRanksEveryRankHearsFromEveryRank) {
  const LinkFacts slow{.latency = 10ms, .overhead = 1ms, .bytes_per_s = 1e6, .incast_penalty = 1, .ranks_per_core = 8};
  for (int n = 1; n <= 8; ++n) {
    for (const int64_t bytes : {0, 1, 4096, 1 << 30}) {
      EXPECT_EQ(choose_all_reduce(bytes, n, kPieces, slow), AllReduce::direct) << n;
      EXPECT_EQ(choose_all_gather(bytes, n, kPieces, slow), AllGather::direct) << n;
      EXPECT_EQ(choose_broadcast(bytes, n, kPieces, slow), Broadcast::flat) << n;
    }
  }
}

TEST(Choice, LongLatencyPrefersFewRounds) {
  const LinkFacts far{.latency = 10ms, .overhead = 1us, .bytes_per_s = 1e9, .incast_penalty = 0};
  EXPECT_EQ(choose_all_reduce(4096, 64, kPieces, far), AllReduce::direct);
  EXPECT_EQ(choose_all_gather(4096, 64, kPieces, far), AllGather::direct);
}

TEST(Choice, DearMessagesPreferFewOfThem) {
  const LinkFacts dear{.latency = 5us, .overhead = 20us, .bytes_per_s = 10e9, .incast_penalty = 0};
  EXPECT_EQ(choose_all_reduce(4096, 64, kPieces, dear), AllReduce::halving);
  EXPECT_EQ(choose_all_gather(4096, 64, kPieces, dear), AllGather::doubling);
  EXPECT_EQ(choose_broadcast(4096, 64, kPieces, dear), Broadcast::tree);
}

TEST(Choice, RanksThatShareCoresPreferTheFewestMessagesInAll) {
  const LinkFacts shared{.latency = 1us, .overhead = 5us, .bytes_per_s = 10e9, .incast_penalty = 0, .ranks_per_core = 8};
  EXPECT_EQ(choose_all_reduce(64, 64, kPieces, shared), AllReduce::tree);
}

TEST(Choice, MuchDataOverCrowdedLinksGoesRound) {
  EXPECT_EQ(choose_all_reduce(256 << 20, 16, kPieces, {}), AllReduce::ring);
  EXPECT_EQ(choose_all_gather(256 << 20, 16, kPieces, {}), AllGather::ring);
}

TEST(Choice, AReductionToOneRankIsSpreadWhereItsLinkWouldBeTheBottleneck) {
  EXPECT_EQ(choose_reduce(1 << 30, 2, kPieces, {}), ReduceTo::flat);  // spreading saves two ranks nothing
  EXPECT_EQ(choose_reduce(1024, 8, kPieces, {}), ReduceTo::flat);
  EXPECT_EQ(choose_reduce(64 << 20, 8, kPieces, {}), ReduceTo::spread);
}

TEST(Choice, CostsAreLatencyAndOverheadAndWire) {
  const LinkFacts facts{.latency = 10us, .overhead = 1us, .bytes_per_s = 1e9, .incast_penalty = 0.5};
  // 16 ranks, 16,000 bytes: direct 2 latencies, 30 messages, 30,000 bytes with 14 peers too many; and so on.
  EXPECT_EQ(cost(AllReduce::direct, 16'000, 16, kPieces, facts), 20us + 30us + 30us * 8);
  EXPECT_EQ(cost(AllReduce::ring, 16'000, 16, kPieces, facts), 300us + 30us + 30us);
  EXPECT_EQ(cost(AllReduce::halving, 16'000, 16, kPieces, facts), 80us + 8us + 75us);
  EXPECT_EQ(cost(AllReduce::tree, 16'000, 16, kPieces, facts), 80us + 8us + 320us);
  // 24 ranks: eight pairs before and after, with all of x.
  EXPECT_EQ(cost(AllReduce::halving, 16'000, 24, kPieces, facts), 100us + 10us + 155us);
  EXPECT_EQ(cost(AllReduce::ring, 16'000, 1, kPieces, facts), 0us);
}

}  // namespace
}  // namespace cairn::comm
