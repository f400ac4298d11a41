// What a group promises beyond the sums: mismatched calls, lost and frozen ranks, records; on both transports.
#include "comm/group.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::On;
using harness::on_ranks;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Label kW{Purpose::gradient, "w"};

class Groups : public testing::TestWithParam<On> {
 protected:
  harness::Options options() const { return {.on = GetParam(), .deadline = 60s, .expect_errors = true}; }
};

Span span(std::vector<float>& x) { return {x.data(), static_cast<int64_t>(x.size()), Dtype::f32}; }

TEST_P(Groups, AMismatchedCallNamesBothOperationsOnBothSides) {
  const harness::Run run = on_ranks(2, options(), [](World& world) {
    std::vector<float> x(12);
    if (world.rank() == 0) {
      world.everyone().all_reduce(span(x), Reduce::sum, {Purpose::gradient, "layers.1"}).wait();
    } else {
      const Work root = world.everyone().broadcast(span(x), 1, {Purpose::parameter, "layers.2"});  // needs nobody to be done
      world.everyone().barrier().wait();
      root.wait();
    }
  });
  // Who finds out first tells the other; both messages name both.
  for (const int rank : {0, 1}) {
    EXPECT_THAT(run.error_on(rank).what(), HasSubstr("rank 1 called broadcast of layers.2, 12 f32, root 1"));
    EXPECT_THAT(run.error_on(rank).what(), HasSubstr("rank 0 called all_reduce of layers.1, 12 f32"));
  }
  const bool found = run.error_on(0).kind() == Error::Kind::broken_invariant || run.error_on(1).kind() == Error::Kind::broken_invariant;
  EXPECT_TRUE(found);
}

TEST_P(Groups, AnotherSizeOrDtypeIsAMismatchToo) {
  for (const bool size : {true, false}) {
    const harness::Run run = on_ranks(3, options(), [size](World& world) {
      std::vector<double> x(100);
      const bool odd = world.rank() == 2;
      world.everyone().all_reduce({x.data(), odd && size ? 99 : 100, odd && !size ? Dtype::f64 : Dtype::f32}, Reduce::sum, kW).wait();
    });
    for (const int rank : {0, 1}) {
      EXPECT_THAT(run.error_on(rank).what(), HasSubstr(size ? "all_reduce of w, 99 f32" : "all_reduce of w, 100 f64")) << rank;
    }
  }
}

TEST_P(Groups, ALostRankIsNamedEvenToThoseWhoWaitForAnother) {
  const auto faults = harness::Faults().lose({.rank = 3, .before_collective = 1});
  const harness::Run run = on_ranks(4, options(), faults, [](World& world) {
    std::vector<float> x(1000, 1.0f);
    world.everyone().all_reduce(span(x), Reduce::sum, kW).wait();
    world.everyone().broadcast(span(x), 0, kW).wait();  // 1 and 2 wait for 0 alone
    world.everyone().barrier("after").wait();
  });
  ASSERT_EQ(run.faults_fired, 1);
  for (const int survivor : {0, 1, 2}) {
    EXPECT_EQ(run.error_on(survivor).kind(), Error::Kind::lost_peer);
    EXPECT_EQ(run.error_on(survivor).peer(), 3);
    EXPECT_THAT(run.error_on(survivor).what(), HasSubstr("rank 3"));
  }
}

TEST_P(Groups, AFrozenRankIsNamedWithTheOperationAndTheWait) {
  const auto faults = harness::Faults().freeze({.rank = 0, .before_collective = 1});
  harness::Options with = options();
  with.deadline = 300ms;
  with.warn_after = 50ms;
  const harness::Run run = on_ranks(3, with, faults, [](World& world) {
    std::vector<float> x(2, 1.0f);  // fewer elements than ranks: rank 2 owns none
    world.everyone().all_reduce(span(x), Reduce::sum, kW).wait();
    world.everyone().all_reduce(span(x), Reduce::sum, kW).wait();
  });
  ASSERT_EQ(run.faults_fired, 1);
  for (const int survivor : {1, 2}) {
    EXPECT_EQ(run.error_on(survivor).kind(), Error::Kind::lost_peer);
    EXPECT_EQ(run.error_on(survivor).peer(), 0) << run.error_on(survivor).what();
    EXPECT_THAT(run.error_on(survivor).what(), HasSubstr("all_reduce of w, 2 f32"));
    EXPECT_THAT(run.error_on(survivor).what(), testing::ContainsRegex("silent for 0.[3-9] s"));
    EXPECT_THAT(run.log.at(survivor), testing::Contains(HasSubstr("waiting for rank 0 waited_s=0.1")));
  }
}

TEST_P(Groups, AfterAFailureEveryLaterOperationFailsToo) {
  const harness::Run run = on_ranks(2, options(), [](World& world) {
    std::vector<float> x(3);
    if (world.rank() == 1) throw Error(Error::Kind::bad_input, "no such file");
    EXPECT_THROW(world.everyone().all_reduce(span(x), Reduce::sum, kW).wait(), Error);
    EXPECT_THROW(world.everyone().all_reduce(span(x), Reduce::sum, kW).wait(), Error);
    EXPECT_NO_THROW(world.alone().all_reduce(span(x), Reduce::sum, kW).wait());
    EXPECT_EQ(world.lost(), std::vector<int>{1});
  });
  EXPECT_EQ(run.errors.size(), 1u);
}

TEST_P(Groups, ARankMayLeaveWhileOthersStillWork) {
  on_ranks(3, {.on = GetParam()}, [](World& world) {
    std::vector<float> x(50000, 1.0f);
    world.everyone().all_reduce(span(x), Reduce::sum, kW).wait();
    EXPECT_EQ(x[49999], 3.0f);
    if (world.rank() == 0) return;
    for (int k = 0; k < 20; ++k) world.group({2, 1}).all_reduce(span(x), Reduce::sum, kW).wait();
    EXPECT_EQ(x[0], 3.0f * (1 << 20));
  });
}

// Its transport still reads when it leaves; by then the groups are gone.
TEST(Leaving, AMessageThatComesMeanwhileHarmsNobody) {
  std::atomic<bool> sent = false;
  on_ranks(2, {.on = On::net}, [&sent](World& world) {
    std::vector<float> x(3);
    if (world.rank() == 0) {
      world.everyone().broadcast(span(x), 0, kW).wait();
      sent = true;
      sent.notify_all();
    } else {
      sent.wait(false);
    }
  });
}

TEST_P(Groups, KeepsARecordOfEachOperation) {
  on_ranks(2, {.on = GetParam()}, [](World& world) {
    std::vector<float> x(5);
    for (int k = 0; k < 300; ++k) world.everyone().all_reduce(span(x), Reduce::sum, kW).wait();
    world.everyone().barrier("end").wait();
    const auto history = world.everyone().history();
    ASSERT_EQ(history.size(), 256u);
    EXPECT_EQ(history.back().name, "barrier of end");
    EXPECT_EQ(history.back().sequence, 300u);
    EXPECT_EQ(history.front().name, "all_reduce of w, 5 f32");
    EXPECT_GE(history.front().ended, history.front().begun);
    EXPECT_GT(history.front().ended.count(), 0);
    EXPECT_FALSE(history.front().failed);
  });
}

TEST_P(Groups, ABackgroundGroupOverTheSameRanksHasItsOwnOrder) {
  on_ranks(2, {.on = GetParam()}, [](World& world) {
    std::vector<float> a(4, 1.0f), b(4, 1.0f);
    Group& front = world.everyone();
    Group& back = world.group({0, 1}, "background");
    EXPECT_NE(&front, &back);
    EXPECT_EQ(&back, &world.group({0, 1}, "background"));
    // Started in another order on each rank: harmless, since the groups do not know each other.
    Work first = world.rank() == 0 ? front.all_reduce(span(a), Reduce::sum, kW) : back.all_reduce(span(b), Reduce::sum, kW);
    Work second = world.rank() == 0 ? back.all_reduce(span(b), Reduce::sum, kW) : front.all_reduce(span(a), Reduce::sum, kW);
    Work::all({first, second}).wait();
    EXPECT_EQ(a[3] + b[3], 4.0f);
  });
}

TEST_P(Groups, APulledRegionIsReadAndAdded) {
  const harness::Run run = on_ranks(2, {.on = GetParam()}, [](World& world) {
    Transport& transport = world.transport();
    Envelope region;
    region.group = 77;
    if (world.rank() == 0) {
      std::vector<float> x{1, 2, 3, 4};
      [[maybe_unused]] const Completion exposed = transport.expose(region, Purpose::state, x.data(), 16);
      world.everyone().barrier().wait();
    } else {
      std::vector<float> into{0, 0}, sum{10, 20};
      const Completion one = transport.pull(0, region, 8, into.data(), 8, PullMode::replace, Dtype::f32);
      const Completion two = transport.pull(0, region, 4, sum.data(), 8, PullMode::add, Dtype::f32);
      EXPECT_TRUE(transport.drive([&] { return one.done() && two.done(); }, world.clock().now() + 10s, "pulls"));
      EXPECT_EQ(into, (std::vector<float>{3, 4}));
      EXPECT_EQ(sum, (std::vector<float>{12, 23}));
      world.everyone().barrier().wait();
    }
  });
  EXPECT_EQ(run.ledger.bytes_sent(0, Purpose::state), 16);
  EXPECT_EQ(run.ledger.bytes_sent(1, Purpose::state), 0);
}

TEST_P(Groups, AWaitEndsAtTheTimeOfATimer) {
  on_ranks(2, {.on = GetParam()}, [](World& world) {
    const auto at = world.clock().now() + 20ms;
    world.timer(at).wait();
    EXPECT_GE(world.clock().now(), at);
  });
}

TEST_P(Groups, ForgottenWorkHarmsNobody) {
  on_ranks(2, {.on = GetParam()}, [](World& world) {
    std::vector<float> x(1 << 20, 1.0f);
    static_cast<void>(world.everyone().all_reduce(span(x), Reduce::sum, kW));
    world.everyone().barrier().wait();  // completes after it
    EXPECT_EQ(x[7], 2.0f);
  });
}

TEST(Group, RefusesWrongBuffersAndRanks) {
  on_ranks(2, [](World& world) {
    std::vector<float> x(4), y(3);
    const auto refused = [](auto call) {
      try {
        call();
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    EXPECT_THAT(refused([&] { world.everyone().broadcast(span(x), 2, kW).wait(); }), HasSubstr("no rank 2 in a group of 2"));
    EXPECT_THAT(refused([&] { world.everyone().all_gather(span(x), span(y), kW).wait(); }), HasSubstr("a buffer of 3 elements for its 2"));
    EXPECT_THAT(refused([&] {
                  world.everyone().all_gather(span(x), span(y), kW, {3, 3}).wait();
                }),
                HasSubstr("add up to 6, the buffer has 4"));
    EXPECT_THAT(refused([&] { world.everyone().all_gather(span(x), span(y), kW, {4}).wait(); }), HasSubstr("1 counts for 2 ranks"));
    EXPECT_THAT(refused([&] { world.group({0, 0, 1}); }), HasSubstr("one is there twice"));
    EXPECT_THAT(refused([&] { world.group({1 - world.rank()}); }), HasSubstr("of which it is none"));
    EXPECT_THAT(refused([&] { world.everyone().send(span(x), world.rank(), kW).wait(); }), HasSubstr("to itself"));
  });
}

INSTANTIATE_TEST_SUITE_P(On, Groups, testing::Values(On::local, On::net, On::machines),
                         [](const auto& one) { return harness::name(one.param); });

}  // namespace
}  // namespace cairn::comm
