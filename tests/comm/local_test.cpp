#include "comm/local.h"

#include <gtest/gtest.h>

#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::on_ranks;
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
    std::vector<float> x(500);  // 2000 bytes: 2 ms on the wire
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
  const harness::Run run = on_ranks(3, {.deadline = 300s, .warn_after = 5s}, faults, three_sums);
  ASSERT_EQ(run.faults_fired, 1);
  for (const int survivor : {0, 2}) {
    EXPECT_EQ(run.error_on(survivor).kind(), Error::Kind::lost_peer);
    EXPECT_EQ(run.error_on(survivor).peer(), 1);
    EXPECT_STREQ(run.error_on(survivor).what(), "rank 1 lost: silent for 300.0 s in all_reduce of w, 10 f32 (operation 2 of ranks 0 1 2)");
    ASSERT_EQ(run.log.at(survivor).size(), 1u);
    EXPECT_NE(run.log.at(survivor)[0].find("waiting for rank 1 waited_s=5.0 in all_reduce of w, 10 f32 (operation 2 of ranks 0 1 2)"),
              std::string::npos)
        << run.log.at(survivor)[0];
  }
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
