#include "comm/link_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::comm {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;

const LinkModel kPlain{.latency = 1ms, .bytes_per_s = 1e6, .jitter = 0};  // a byte takes a microsecond

TEST(LinkModel, AMessageTakesItsBytesOverTheBandwidthAndTheLatency) {
  Shaper shaper(kPlain, 2, 0);
  const Shaper::Transit passage = shaper.send(0, 1, 2000, 5ms);
  EXPECT_EQ(passage.left, 7ms);
  EXPECT_EQ(passage.arrives, 8ms);
  EXPECT_EQ(passage.resends, 0);
  EXPECT_EQ(shaper.receive(0, 1, 2000, passage.arrives), 8ms);
}

TEST(LinkModel, MessagesOfOnePairQueueAndOtherPairsDoNot) {
  Shaper shaper(kPlain, 3, 0);
  EXPECT_EQ(shaper.send(0, 1, 1000, 0ms).arrives, 2ms);
  EXPECT_EQ(shaper.send(0, 1, 1000, 0ms).arrives, 3ms);
  EXPECT_EQ(shaper.send(0, 2, 1000, 0ms).arrives, 2ms);
  EXPECT_EQ(shaper.send(1, 0, 1000, 0ms).arrives, 2ms);
  EXPECT_EQ(shaper.send(0, 1, 1000, 10ms).arrives, 12ms);  // idle again by then
}

TEST(LinkModel, ANicIsSharedByAllLinksOfARankInAndOutSeparately) {
  LinkModel model = kPlain;
  model.contention = LinkModel::Contention::per_nic;
  Shaper shaper(model, 4, 0);
  const auto pass = [&](int from, int to) { return shaper.receive(from, to, 1000, shaper.send(from, to, 1000, 0ms).arrives); };
  EXPECT_EQ(pass(0, 1), 2ms);
  EXPECT_EQ(pass(0, 2), 3ms);  // waits for 0's card to send
  EXPECT_EQ(pass(3, 1), 3ms);  // waits for 1's card to receive
  EXPECT_EQ(pass(1, 0), 2ms);  // sending does not disturb receiving
}

// Two machines of two ranks: links inside are free, so only messages between machines keep a card busy, by their own bandwidth.
TEST(LinkModel, ASharedCardIsBusyForTheBandwidthOfThePair) {
  LinkModel model = kPlain;
  model.contention = LinkModel::Contention::per_nic;
  model.bytes_per_s = 1;  // of no pair
  model.bytes_per_s_matrix = {{1e12, 1e12, 1e6, 1e6}, {1e12, 1e12, 1e6, 1e6}, {1e6, 1e6, 1e12, 1e12}, {1e6, 1e6, 1e12, 1e12}};
  Shaper shaper(model, 4, 0);
  const auto pass = [&](int from, int to) { return shaper.receive(from, to, 1000, shaper.send(from, to, 1000, 0ms).arrives); };
  EXPECT_EQ(pass(0, 2), 2ms);
  EXPECT_EQ(pass(1, 2), 3ms);  // waits for 2's card to receive
  EXPECT_EQ(pass(0, 3), 3ms);  // waits for 0's card to send
  EXPECT_EQ(pass(1, 0), 2ms + 1ns);  // 1 sends after its message to 2; what arrives at 0 costs next to nothing
  EXPECT_TRUE(facts_of(model, {0, 1}).shared_card);
  EXPECT_FALSE(facts_of(kPlain, {0, 1}).shared_card);
}

TEST(LinkModel, PairsHaveBandwidthsOfTheirOwn) {
  LinkModel model = kPlain;
  model.bytes_per_s_matrix = {{1, 1e6, 2e6}, {5e5, 1, 1e6}, {1e6, 1e6, 1}};
  Shaper shaper(model, 3, 0);
  EXPECT_EQ(shaper.send(0, 1, 1000, 0ms).arrives, 2ms);
  EXPECT_EQ(shaper.send(0, 2, 1000, 0ms).arrives, 1500us);
  EXPECT_EQ(shaper.send(1, 0, 1000, 0ms).arrives, 3ms);
  EXPECT_EQ(facts_of(model, {0, 1}).bytes_per_s, 5e5);  // the slowest round the ring
  EXPECT_EQ(facts_of(model, {0, 2}).bytes_per_s, 1e6);
}

TEST(LinkModel, JitterAddsUpToItsShareOfTheLatency) {
  LinkModel model = kPlain;
  model.jitter = 0.5;
  Shaper shaper(model, 2, 3);
  nanoseconds low = 1h, high = 0ns;
  for (int k = 0; k < 1000; ++k) {
    const nanoseconds took = shaper.send(0, 1, 0, 0ms).arrives;
    low = std::min(low, took);
    high = std::max(high, took);
  }
  EXPECT_GE(low, 1ms);
  EXPECT_LT(low, 1010us);
  EXPECT_LE(high, 1500us);
  EXPECT_GT(high, 1490us);
}

TEST(LinkModel, ALogNormalLatencyHasItsMedianAndSpread) {
  LinkModel model = kPlain;
  model.latency_sigma = 0.5;
  Shaper shaper(model, 2, 1);
  constexpr int kMany = 4000;
  std::vector<double> logs;
  for (int k = 0; k < kMany; ++k) {
    const nanoseconds now = k * 1ms, took = shaper.send(0, 1, 0, now).arrives - now;
    EXPECT_EQ(shaper.send(0, 1, 0, now + 50us).arrives - now - 50us, took);  // of the same burst
    EXPECT_GE(took, shaper.least_latency());
    logs.push_back(std::log(static_cast<double>(took.count()) / 1e6));
  }
  double mean = 0, square = 0;
  for (const double one : logs) mean += one / kMany, square += one * one / kMany;
  EXPECT_NEAR(mean, 0, 4 * 0.5 / std::sqrt(kMany));  // the median is the latency: four standard errors
  EXPECT_NEAR(std::sqrt(square - mean * mean), 0.5, 4 * 0.5 / std::sqrt(2 * kMany));
  EXPECT_EQ(shaper.least_latency(), nanoseconds(static_cast<int64_t>(1e6 * std::exp(-2.0))));
}

TEST(LinkModel, AMatrixGivesEachPairItsLatency) {
  LinkModel model = kPlain;
  model.latency_matrix = {{0ms, 3ms, 5ms}, {4ms, 0ms, 7ms}, {6ms, 8ms, 0ms}};
  Shaper shaper(model, 3, 0);
  EXPECT_EQ(shaper.send(0, 2, 0, 1ms).arrives, 6ms);
  EXPECT_EQ(shaper.send(2, 0, 0, 1ms).arrives, 7ms);
  EXPECT_EQ(shaper.least_latency(), 3ms);  // a rank's way to itself does not count
}

TEST(LinkModel, ALostPacketIsSentAgainAfterAWhileAndWhatFollowsWaits) {
  LinkModel model = kPlain;
  model.loss = 0.1;
  Shaper shaper(model, 2, 5);
  int lost = 0, twice = 0;
  nanoseconds last{};
  for (int k = 0; k < 2000; ++k) {
    const nanoseconds now = k * 10s;
    const Shaper::Transit passage = shaper.send(0, 1, 100, now);
    nanoseconds expected = now + 1100us;
    if (passage.resends >= 1) expected += 200ms;
    if (passage.resends >= 2) expected += 400ms;
    EXPECT_TRUE(passage.resends > 2 || passage.arrives == expected) << k;
    const nanoseconds follower = shaper.send(0, 1, 100, now + 1us).arrives;
    EXPECT_GE(follower, passage.arrives);
    lost += passage.resends >= 1;
    twice += passage.resends >= 2;
    last = follower;
  }
  EXPECT_NEAR(lost / 2000.0, 0.1, 4 * std::sqrt(0.1 * 0.9 / 2000));
  EXPECT_NEAR(twice / 2000.0, 0.01, 4 * std::sqrt(0.01 * 0.99 / 2000));
  EXPECT_GT(last, 1999 * 10s);
}

TEST(LinkModel, ALossInsideALongMessageCostsOneRoundTrip) {
  LinkModel model = kPlain;
  model.loss = 0.01;
  Shaper shaper(model, 2, 5);
  int once = 0;
  for (int k = 0; k < 200; ++k) {
    const nanoseconds now = k * 100s;
    const Shaper::Transit passage = shaper.send(0, 1, 50 * 1460, now);
    once += passage.resends == 1;
    EXPECT_TRUE(passage.resends != 1 || passage.arrives == now + 73ms + 3ms) << k;
  }
  EXPECT_NEAR(once / 200.0, 1 - std::pow(0.99, 50), 4 * std::sqrt(0.4 * 0.6 / 200));  // 1 in 2.5 loses one of its 50 packets
}

// Chance belongs to seed, pair and number: what others send changes nothing.
TEST(LinkModel, ChanceIsAFunctionOfSeedPairAndNumber) {
  LinkModel model = kPlain;
  model.jitter = 1;
  model.latency_sigma = 0.3;
  model.loss = 0.05;
  Shaper alone(model, 3, 9), busy(model, 3, 9), other(model, 3, 10);
  int differ = 0, pairs_differ = 0;
  for (int k = 0; k < 100; ++k) {
    const nanoseconds now = k * 100s;
    const nanoseconds pair_2 = busy.send(0, 2, 10, now).arrives;
    const nanoseconds expected = alone.send(0, 1, 10, now).arrives;
    EXPECT_EQ(busy.send(0, 1, 10, now).arrives, expected);
    differ += other.send(0, 1, 10, now).arrives != expected;
    pairs_differ += pair_2 != expected;
  }
  EXPECT_GT(differ, 95);
  EXPECT_GT(pairs_differ, 95);
}

TEST(LinkModel, ASlowRankSlowsItsLinksAndNoOthers) {
  Shaper shaper(kPlain, 3, 0);
  shaper.slow_down(1, 10);
  EXPECT_EQ(shaper.send(0, 1, 1000, 0ms).arrives, 20ms);
  EXPECT_EQ(shaper.send(1, 0, 1000, 0ms).arrives, 20ms);
  EXPECT_EQ(shaper.send(0, 2, 1000, 0ms).arrives, 2ms);
  EXPECT_THROW(shaper.slow_down(1, 0.5), Error);
}

TEST(LinkModel, RefusesWhatNoLinkIsLikeAndNamesTheField) {
  const auto refused = [](const std::function<void(LinkModel&)>& change) {
    LinkModel model;
    change(model);
    try {
      check(model, 2);
    } catch (const Error& error) {
      return std::string(name(error.kind())) + ": " + error.what();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused([](LinkModel&) {}), "accepted");
  EXPECT_EQ(refused([](LinkModel& m) { m.bytes_per_s = 0; }), "bad_input: link.bytes_per_s = 0: must be above 0");
  EXPECT_EQ(refused([](LinkModel& m) { m.latency = -1ns; }), "bad_input: link.latency = -1 ns: must not be negative");
  EXPECT_EQ(refused([](LinkModel& m) { m.jitter = NAN; }), "bad_input: link.jitter = nan: must not be negative");
  EXPECT_EQ(refused([](LinkModel& m) { m.latency_sigma = -1; }), "bad_input: link.latency_sigma = -1: must not be negative");
  EXPECT_EQ(refused([](LinkModel& m) { m.loss = 0.6; }), "bad_input: link.loss = 0.6: must be between 0 and 0.5");
  EXPECT_EQ(refused([](LinkModel& m) { m.retransmit_after = 0ns; }), "bad_input: link.retransmit_after = 0 ns: must be above 0");
  EXPECT_EQ(refused([](LinkModel& m) { m.bytes_per_s_matrix.resize(3); }), "bad_input: link.bytes_per_s_matrix has 3 rows for 2 ranks");
  EXPECT_EQ(refused([](LinkModel& m) { m.bytes_per_s_matrix.resize(2); }), "bad_input: link.bytes_per_s_matrix has a row of 0 for 2 ranks");
  EXPECT_EQ(refused([](LinkModel& m) {
              m.bytes_per_s_matrix = {{1, 1}, {0, 1}};
            }),
            "bad_input: link.bytes_per_s_matrix holds 0: must be above 0");
  EXPECT_EQ(refused([](LinkModel& m) { m.latency_matrix.resize(3); }), "bad_input: link.latency_matrix has 3 rows for 2 ranks");
  EXPECT_EQ(refused([](LinkModel& m) { m.latency_matrix.resize(2); }), "bad_input: link.latency_matrix has a row of 0 for 2 ranks");
  EXPECT_EQ(refused([](LinkModel& m) {
              m.latency_matrix = {{0ns, 1ns}, {-5ns, 0ns}};
            }),
            "bad_input: link.latency_matrix holds -5 ns: must not be negative");
}

}  // namespace
}  // namespace cairn::comm
