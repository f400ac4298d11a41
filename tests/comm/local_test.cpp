#include "comm/local/local.h"

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::on_ranks;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Label kW{Purpose::gradient, "w"};

void three_sums(World& world) {
  std::vector<float> x(10, 1.0f);
  for (int k = 0; k < 3; ++k) world.everyone().all_reduce({x.data(), 10, Dtype::f32}, Reduce::sum, kW).wait();
}

TEST(Local, TheSameSeedGivesTheSameEventLogAndAnotherSeedAnother) {
  const std::string first = on_ranks(5, {.seed = 7}, three_sums).event_log;
  EXPECT_GT(first.size(), 1000u);
  for (int k = 0; k < 5; ++k) EXPECT_EQ(on_ranks(5, {.seed = 7}, three_sums).event_log, first);
  EXPECT_NE(on_ranks(5, {.seed = 8}, three_sums).event_log, first);
}

TEST(Local, TimeIsLatencyPlusBytesOverBandwidth) {
  const LinkModel link{.latency = 1ms, .bytes_per_s = 1e6, .jitter = 0};
  on_ranks(2, {.link = link}, [](World& world) {
    std::vector<float> x(500);  // 2000 bytes: 2 ms on the link
    Group& all = world.everyone();
    (world.rank() == 0 ? all.send({x.data(), 500, Dtype::f32}, 1, kW) : all.recv({x.data(), 500, Dtype::f32}, 0, kW)).wait();
    EXPECT_EQ(world.clock().now(), 3ms);
  });
}

TEST(Local, TimersAreDoneAtTheirTime) {
  on_ranks(3, [](World& world) {
    world.timer(world.clock().now() + std::chrono::hours(world.rank() + 1)).wait();
    EXPECT_EQ(world.clock().now(), std::chrono::hours(world.rank() + 1));
  });
}

TEST(Local, SixtyFourRanksAgree) {
  const harness::Run run = on_ranks(64, [](World& world) {
    std::vector<int64_t> x(1000, world.rank());
    for (int k = 0; k < 3; ++k) {
      std::fill(x.begin(), x.end(), world.rank());
      world.everyone().all_reduce({x.data(), 1000, Dtype::i64}, Reduce::sum, kW).wait();
      ASSERT_EQ(x[999], 63 * 64 / 2);
    }
  });
  EXPECT_EQ(run.ledger.total(Purpose::gradient).bytes, 3 * 2 * 63 * 8000);
}

TEST(Local, ALostRankIsNamedToEverySurvivor) {
  const auto faults = harness::Faults().lose({.rank = 2, .before_collective = 1});
  const harness::Run run = on_ranks(4, faults, three_sums);
  ASSERT_EQ(run.faults_fired, 1);
  for (const int survivor : {0, 1, 3}) {
    EXPECT_EQ(run.error_on(survivor).kind(), Error::Kind::lost_peer);
    EXPECT_EQ(run.error_on(survivor).peer(), 2);
    EXPECT_STREQ(run.error_on(survivor).what(),
                 "rank 2 lost: it ended by an exception (in all_reduce of w, 10 f32, operation 1 of ranks 0 1 2 3)");
  }
  EXPECT_FALSE(run.errors.contains(2));
}

TEST(Local, AFrozenRankIsNamedAfterTheDeadlineInVirtualTime) {
  const auto faults = harness::Faults().freeze({.rank = 1, .before_collective = 2});
  const harness::Run run = on_ranks(3, {.deadline = 300s, .warn_after = 5s, .lost_after = 0s}, faults, three_sums);
  ASSERT_EQ(run.faults_fired, 1);
  for (const int survivor : {0, 2}) {
    EXPECT_EQ(run.error_on(survivor).kind(), Error::Kind::lost_peer);
    EXPECT_EQ(run.error_on(survivor).peer(), 1);
    EXPECT_STREQ(run.error_on(survivor).what(), "rank 1 lost: silent for 300.0 s in all_reduce of w, 10 f32 (operation 2 of ranks 0 1 2)");
    ASSERT_EQ(run.log.at(survivor).size(), 1u);
    EXPECT_THAT(run.log.at(survivor)[0],
                HasSubstr("waiting for rank 1 waited_s=5.0 in all_reduce of w, 10 f32 (operation 2 of ranks 0 1 2)"));
  }
}

TEST(Local, AFrozenRankIsNamedWhenItsHeartbeatIsMissed) {
  for (const auto& faults :
       {harness::Faults().freeze({.rank = 1, .before_collective = 2}), harness::Faults().freeze({.rank = 1, .at = 25us})}) {
    const harness::Run run = on_ranks(3, faults, three_sums);
    ASSERT_EQ(run.faults_fired, 1);
    for (const int survivor : {0, 2}) {
      EXPECT_EQ(run.error_on(survivor).kind(), Error::Kind::lost_peer);
      EXPECT_EQ(run.error_on(survivor).peer(), 1);
      EXPECT_THAT(run.error_on(survivor).what(), HasSubstr("rank 1 lost: no sign of life for 3.0 s (in all_reduce of w, 10 f32"));
    }
    EXPECT_FALSE(run.errors.contains(1));
  }
}

TEST(Local, ARankThatThawsInTimeHarmsNobody) {
  for (const auto& faults : {harness::Faults().freeze({.rank = 1, .before_collective = 2, .thaw_after = 2s}),
                             harness::Faults().freeze({.rank = 1, .at = 25us, .thaw_after = 2s})}) {
    std::vector<float> sums(3);
    const harness::Run run = on_ranks(3, faults, [&](World& world) {
      std::vector<float> x(10, 1.0f);
      for (int k = 0; k < 3; ++k) world.everyone().all_reduce({x.data(), 10, Dtype::f32}, Reduce::sum, kW).wait();
      EXPECT_GE(world.clock().now(), 2s);
      EXPECT_LT(world.clock().now(), 2001ms);
      sums[world.rank()] = x[9];
    });
    EXPECT_EQ(run.faults_fired, 1);
    EXPECT_TRUE(run.errors.empty());
    EXPECT_EQ(sums, (std::vector<float>{27, 27, 27}));
  }
}

TEST(Local, ARankThatThawsTooLateLearnsThatItWasTheCulprit) {
  const auto faults = harness::Faults().freeze({.rank = 1, .before_collective = 2, .thaw_after = 10s});
  const harness::Run run = on_ranks(3, faults, three_sums);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(run.error_on(rank).peer(), 1);
  EXPECT_THAT(run.error_on(1).what(), HasSubstr("rank 1 lost: no sign of life for 3.0 s"));
}

TEST(Local, ARankMayBeKilledAtATimeOrWithAMessage) {
  for (const auto& faults : {harness::Faults().lose({.rank = 2, .at = 25us}),
                             harness::Faults().add({.kind = Fault::Kind::kill, .rank = 2, .from = 2, .to = 0, .message = 3})}) {
    const harness::Run run = on_ranks(4, faults, three_sums);
    ASSERT_EQ(run.faults_fired, 1);
    for (const int survivor : {0, 1, 3}) {
      EXPECT_EQ(run.error_on(survivor).peer(), 2);
      EXPECT_THAT(run.error_on(survivor).what(), HasSubstr("rank 2 lost: it ended by an exception"));
    }
    EXPECT_FALSE(run.errors.contains(2));
  }
}

TEST(Local, ADamagedMessageIsRefusedAndItsSenderNamed) {
  const auto faults = harness::Faults().corrupt({.from = 2, .to = 0, .message = 1, .bit = 13});
  const harness::Run run = on_ranks(3, faults, three_sums);
  ASSERT_EQ(run.faults_fired, 1);
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(run.error_on(rank).kind(), Error::Kind::lost_peer);
    EXPECT_EQ(run.error_on(rank).peer(), 2);
    EXPECT_THAT(run.error_on(rank).what(), HasSubstr("rank 2 lost: a message of 12 bytes from it was damaged on its way: checksum "));
  }
}

TEST(Local, ADamagedEnvelopeIsRefusedToo) {
  const auto faults = harness::Faults().corrupt({.from = 1, .to = 0, .message = 0, .bit = 3});
  const harness::Run run = on_ranks(2, faults, [](World& world) { world.everyone().barrier().wait(); });
  EXPECT_EQ(run.error_on(0).peer(), 1);
  EXPECT_THAT(run.error_on(0).what(), HasSubstr("rank 1 lost: a message of 0 bytes from it was damaged"));
}

void send_then_meet(World& world) {
  float x = static_cast<float>(world.rank() + 1);
  Group& all = world.everyone();
  if (world.rank() == 0) all.send({&x, 1, Dtype::f32}, 1, kW).wait();
  if (world.rank() == 1) all.recv({&x, 1, Dtype::f32}, 0, kW).wait();
  all.barrier().wait();
  EXPECT_EQ(x, world.rank() == 2 ? 3.0f : 1.0f);
}

TEST(Local, WhoMissesADroppedMessageNamesItsSenderAtTheDeadline) {
  const auto faults = harness::Faults().drop({.from = 0, .to = 1, .message = 0});
  const harness::Run run = on_ranks(3, {.deadline = 10s}, faults, send_then_meet);
  ASSERT_EQ(run.faults_fired, 1);
  EXPECT_STREQ(run.error_on(1).what(), "rank 0 lost: silent for 10.0 s in send of w, 1 f32 (message 0 of ranks 0 1 2)");
  EXPECT_EQ(run.error_on(1).peer(), 0);
  EXPECT_THAT(run.error_on(0).peer(), testing::AnyOf(0, 1));     // the two ends
  EXPECT_EQ(run.ledger.messages_sent(0, Purpose::gradient), 1);  // it was sent
}

TEST(Local, ADelayedMessageArrivesThatMuchLater) {
  const LinkModel link{.latency = 1ms, .jitter = 0};
  const auto faults = harness::Faults().delay({.from = 0, .to = 1, .message = 0, .by = 500ms});
  const harness::Run run = on_ranks(3, {.link = link}, faults, [](World& world) {
    send_then_meet(world);
    EXPECT_EQ(world.clock().now(), 502ms);  // a message, and the barrier's
  });
  EXPECT_EQ(run.faults_fired, 1);
  EXPECT_TRUE(run.errors.empty());
}

TEST(Local, AReorderedMessageArrivesAfterTheNext) {
  const auto two = [](World& world) {
    std::vector<float> x{1, 2};
    Group& all = world.everyone();
    std::vector<Work> works;
    for (float& one : x) {
      const Span span{&one, 1, Dtype::f32};
      if (world.rank() == 1) one = 0;
      works.push_back(world.rank() == 0 ? all.send(span, 1, kW) : all.recv(span, 0, kW));
    }
    Work::all(works).wait();
    EXPECT_EQ(x, (std::vector<float>{1, 2}));
  };
  const LinkModel link{.latency = 1ms, .jitter = 0};
  const auto second_first = [](const std::string& log) { return log.find("operation=1 step") < log.find("operation=0 step"); };
  EXPECT_FALSE(second_first(on_ranks(2, {.link = link}, two).event_log));
  const harness::Run run = on_ranks(2, {.link = link}, harness::Faults().reorder({.from = 0, .to = 1, .message = 0}), two);
  EXPECT_EQ(run.faults_fired, 1);
  EXPECT_TRUE(run.errors.empty());
  EXPECT_TRUE(second_first(run.event_log)) << run.event_log;
}

TEST(Local, AcrossAPartitionEachSideNamesTheOther) {
  const auto faults = harness::Faults().partition({.these = {0, 1}, .those = {2}, .at = 10us});
  const harness::Run run = on_ranks(3, faults, three_sums);
  ASSERT_EQ(run.faults_fired, 1);
  for (const int rank : {0, 1}) EXPECT_EQ(run.error_on(rank).peer(), 2);
  EXPECT_THAT(run.error_on(2).peer(), testing::AnyOf(0, 1));
  EXPECT_THAT(run.error_on(2).what(), HasSubstr("no sign of life for 3.0 s"));
}

TEST(Local, AOneWayPartitionIsNoticedByWhoDoesNotHear) {
  const auto faults = harness::Faults().partition({.these = {0}, .those = {1}, .one_way = true, .at = 10us});
  const harness::Run run = on_ranks(2, faults, three_sums);
  EXPECT_EQ(run.error_on(1).peer(), 0);
  EXPECT_THAT(run.error_on(1).what(), testing::StartsWith("rank 0 lost: no sign of life for 3.0 s"));
  EXPECT_THAT(run.error_on(0).what(), testing::StartsWith("rank 0 lost: no sign of life for 3.0 s, says rank 1"));  // which 0 still hears
}

TEST(Local, APartitionThatHealsInTimeHarmsNobody) {
  const auto faults = harness::Faults().partition({.these = {0, 1}, .those = {2}, .at = 10us, .heal_after = 2s});
  const harness::Run run = on_ranks(3, faults, [](World& world) {
    three_sums(world);
    EXPECT_GE(world.clock().now(), 2s);
    EXPECT_LT(world.clock().now(), 2001ms);
  });
  EXPECT_EQ(run.faults_fired, 1);
  EXPECT_TRUE(run.errors.empty());
}

TEST(Local, NewsOfADeathDoNotCrossAPartition) {
  const auto faults = harness::Faults().partition({.these = {0}, .those = {1, 2}, .at = 10us}).lose({.rank = 2, .at = 1s});
  const harness::Run run = on_ranks(3, faults, three_sums);
  EXPECT_THAT(run.error_on(0).what(), HasSubstr("no sign of life for 3.0 s"));
  EXPECT_THAT(run.error_on(1).what(), HasSubstr("rank 2 lost: it ended by an exception"));
}

TEST(Local, ASlowRankIsWarnedAboutAndAwaited) {
  const auto faults = harness::Faults().slow({.rank = 2, .before_collective = 1, .pause = 2s});
  const harness::Run run = on_ranks(3, {.warn_after = 1s}, faults, [](World& world) {
    three_sums(world);
    EXPECT_GE(world.clock().now(), 4s);
    EXPECT_LT(world.clock().now(), 4001ms);
  });
  EXPECT_EQ(run.faults_fired, 1);
  EXPECT_TRUE(run.errors.empty());
  ASSERT_EQ(run.log.at(0).size(), 2u);
  EXPECT_THAT(run.log.at(0)[0], HasSubstr("waiting for rank 2 waited_s=1.0 in all_reduce of w, 10 f32 (operation 1 of ranks 0 1 2)"));
}

TEST(Local, SlowLinksTakeLonger) {
  const LinkModel link{.latency = 1ms, .bytes_per_s = 1e6, .jitter = 0};
  const auto faults = harness::Faults().slow({.rank = 1, .at = 0ns, .link_factor = 7});
  const harness::Run run = on_ranks(2, {.link = link}, faults, [](World& world) {
    std::vector<float> x(250);  // 1000 bytes: 1 ms on the link
    Group& all = world.everyone();
    world.timer(1us).wait();  // the fault has struck
    (world.rank() == 0 ? all.send({x.data(), 250, Dtype::f32}, 1, kW) : all.recv({x.data(), 250, Dtype::f32}, 0, kW)).wait();
    EXPECT_EQ(world.clock().now(), 14ms + 1us);
  });
  EXPECT_EQ(run.faults_fired, 1);
}

TEST(Local, AFaultWithoutATimeOrWithAnUnknownRankIsRefused) {
  const auto refused = [](const harness::Faults& faults) {
    try {
      on_ranks(2, faults, three_sums);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused(harness::Faults().lose({.rank = 1})), HasSubstr("one of before_collective, at and message"));
  EXPECT_THAT(refused(harness::Faults().lose({.rank = 1, .before_collective = 1, .at = 1s})),
              HasSubstr("one of before_collective, at and message"));
  EXPECT_THAT(refused(harness::Faults().lose({.rank = 2, .at = 1s})), HasSubstr("kill rank 2 at 1.000000 s: no such rank among 2"));
  EXPECT_THAT(refused(harness::Faults().drop({.from = 1, .to = 1, .message = 3})),
              HasSubstr("drop 1>1 with message 3 of 1>1: no such pair"));
  EXPECT_THAT(refused(harness::Faults().partition({.these = {0}, .those = {5}})),
              HasSubstr("partition 0 from 5 at 0.000000 s: no such ranks"));
  EXPECT_THAT(refused(harness::Faults().slow({.rank = 0, .at = 1s, .link_factor = 0.5})), HasSubstr("a factor of 0.5"));
}

TEST(Local, ADeadlockIsAnErrorAtOnceThatNamesEachRanksOperation) {
  const harness::Run run = on_ranks(2, {.expect_errors = true}, [](World& world) {
    float x = 0;
    world.everyone().recv({&x, 1, Dtype::f32}, 1 - world.rank(), {Purpose::data, world.rank() == 0 ? "left" : "right"}).wait();
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(run.error_on(rank).kind(), Error::Kind::broken_invariant);
    EXPECT_STREQ(run.error_on(rank).what(),
                 "deadlock, all ranks wait and nothing is on the way: rank 0 in send of left, 1 f32; rank 1 in send of right, 1 f32 "
                 "(message 0 of ranks 0 1)");
  }
}

TEST(Local, ARankThatEndsEarlyIsNamedToWhoWaitsForIt) {
  const harness::Run run = on_ranks(2, {.expect_errors = true}, [](World& world) {
    if (world.rank() == 1) return;
    three_sums(world);
  });
  EXPECT_EQ(run.error_on(0).kind(), Error::Kind::lost_peer);
  EXPECT_EQ(run.error_on(0).peer(), 1);
  EXPECT_NE(std::string(run.error_on(0).what()).find("rank 1 lost: it has ended its work and will not take part in all_reduce of w"),
            std::string::npos)
      << run.error_on(0).what();
}

TEST(Local, AnErrorOfOneRankReachesTheOthersWithItsReason) {
  const harness::Run run = on_ranks(3, {.expect_errors = true}, [](World& world) {
    if (world.rank() == 1) throw Error(Error::Kind::bad_input, "data.path = x: no such file");
    three_sums(world);
  });
  EXPECT_EQ(run.error_on(1).kind(), Error::Kind::bad_input);
  EXPECT_EQ(run.error_on(0).peer(), 1);
  EXPECT_NE(std::string(run.error_on(0).what()).find("rank 1 lost: data.path = x: no such file"), std::string::npos)
      << run.error_on(0).what();
}

// With threads that get in the way, so that the scheduler decides otherwise each time.
TEST(Local, TheSameSeedGivesTheSameEventLogUnderLoadWithFaultsAndAnyNumberOfRanks) {
  std::atomic<bool> over = false;
  const auto burn = [&over] {
    while (!over) std::this_thread::yield();
  };
  const std::jthread one(burn), two(burn), three(burn);
  for (const int n : {2, 3, 17, 64}) {
    const auto faults = harness::Faults()
                            .delay({.from = 0, .to = 1, .message = 1, .by = 1ms})
                            .reorder({.from = 1, .to = 0, .message = 0})
                            .freeze({.rank = 0, .before_collective = 1, .thaw_after = 1s})
                            .slow({.rank = n / 2, .at = 40us, .pause = 10us, .link_factor = 3})
                            .partition({.these = {0}, .those = {n - 1}, .at = 60us, .heal_after = 500us})
                            .lose({.rank = n - 1, .before_collective = 2});
    const harness::Run first = on_ranks(n, {.seed = 5}, faults, three_sums);
    EXPECT_EQ(first.faults_fired, 6);
    for (int again = 0; again < 3; ++again) ASSERT_EQ(on_ranks(n, {.seed = 5}, faults, three_sums).event_log, first.event_log) << n;
  }
  over = true;
}

TEST(Local, TwoHundredFiftySixRanksAgree) {
  on_ranks(256, [](World& world) {
    int64_t x = world.rank();
    world.everyone().all_reduce({&x, 1, Dtype::i64}, Reduce::sum, kW).wait();
    EXPECT_EQ(x, 255 * 256 / 2);
  });
}

TEST(Local, ABufferThatIsWrittenOverWhileItIsSentIsAnError) {
  const harness::Run run = on_ranks(2, {.expect_errors = true}, [](World& world) {
    float x = 1;
    Group& all = world.everyone();
    const Work work = world.rank() == 0 ? all.send({&x, 1, Dtype::f32}, 1, kW) : all.recv({&x, 1, Dtype::f32}, 0, kW);
    if (world.rank() == 0) x = 2;
    work.wait();
    EXPECT_EQ(world.rank(), 1);
    EXPECT_EQ(x, 1);
  });
  EXPECT_EQ(run.error_on(0).kind(), Error::Kind::broken_invariant);
  EXPECT_THAT(run.error_on(0).what(), HasSubstr("rank 0 wrote over a buffer while it was being sent to rank 1: send of w, 1 f32"));
}

TEST(Local, AViewShowsTheBytesForAsLongAsItsCompletionLives) {
  on_ranks(2, [](World& world) {
    Transport& transport = world.transport();
    Envelope envelope;
    envelope.group = 77;
    std::vector<uint8_t> x{1, 2, 3};
    if (world.rank() == 0) {
      const Completion sent = transport.send(1, envelope, Purpose::data, x.data(), 3);
      EXPECT_TRUE(transport.drive([&] { return sent.done(); }, 1s, "a send"));
      x.assign(3, 9);  // the view is of its own
    } else {
      Completion view = transport.recv_view(0, envelope, 3);
      EXPECT_FALSE(view.done());
      ASSERT_TRUE(transport.drive([&] { return view.done(); }, 1s, "a view"));
      const std::weak_ptr<void> bytes = view.transfer()->held;
      EXPECT_EQ(std::vector<uint8_t>(reinterpret_cast<const uint8_t*>(view.view()), reinterpret_cast<const uint8_t*>(view.view()) + 3), x);
      view = Completion();
      EXPECT_TRUE(bytes.expired());
    }
    world.everyone().barrier().wait();
  });
}

TEST(Local, AViewOfAnEarlyMessageIsDoneAtOnceAndOneOfAnotherLengthIsAMismatch) {
  on_ranks(2, {.expect_errors = true}, [](World& world) {
    Transport& transport = world.transport();
    Envelope one, two;
    one.group = two.group = 77;
    two.step = 1;
    const uint8_t x[4] = {1, 2, 3, 4};
    std::vector<Completion> sent;
    if (world.rank() == 0) {
      for (const Envelope& envelope : {one, two}) sent.push_back(transport.send(1, envelope, Purpose::data, x, 4));
    }
    world.everyone().barrier().wait();
    world.everyone().barrier().wait();
    if (world.rank() == 0) return;
    const Completion right = transport.recv_view(0, one, 4), wrong = transport.recv_view(0, two, 3);
    EXPECT_TRUE(right.done());
    EXPECT_EQ(right.view()[3], std::byte(4));
    ASSERT_TRUE(wrong.done());
    ASSERT_TRUE(wrong.transfer()->error.has_value());
    EXPECT_EQ(wrong.transfer()->error->peer(), 0);
  });
}

TEST(Local, AViewThatNobodyWantsAnyMoreIsForgotten) {
  on_ranks(2, [](World& world) {
    Transport& transport = world.transport();
    Envelope envelope;
    envelope.group = 77;
    uint8_t x = 5;
    if (world.rank() == 1) {
      static_cast<void>(transport.recv_view(0, envelope, 1));  // cancelled: the message is for the next who asks
      const Completion received = transport.recv(0, envelope, &x, 1);
      x = 0;
      EXPECT_TRUE(transport.drive([&] { return received.done(); }, 1s, "a byte"));
      EXPECT_EQ(x, 5);
    } else {
      const Completion sent = transport.send(1, envelope, Purpose::data, &x, 1);
      EXPECT_TRUE(transport.drive([&] { return sent.done(); }, 1s, "a byte"));
    }
  });
}

TEST(Local, ReadyDoesNotChangeWhileARankRuns) {
  on_ranks(2, [](World& world) {
    float x = 1;
    const Work work = world.everyone().all_reduce({&x, 1, Dtype::f32}, Reduce::sum, kW);
    for (int k = 0; k < 1000; ++k) {
      world.everyone().progress();
      ASSERT_FALSE(work.ready());
    }
    work.wait();
    EXPECT_TRUE(work.ready());
    EXPECT_EQ(x, 2.0f);
  });
}

}  // namespace
}  // namespace cairn::comm
