// Shaped links on `net`: what was asked for is what a message takes.
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "comm/net/transport.h"
#include "comm/world.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;

constexpr Label kX{Purpose::data, "x"};

// Runs the ranks as threads on links like these; `machines` says where they are.
void on_links(const std::vector<int>& machines, const LinkModel& links, const std::function<void(World&)>& body) {
  const auto setups = make_net_setups(machines);
  std::vector<std::jthread> threads;
  for (const NetSetup& setup : setups) {
    threads.emplace_back([&, setup] {
      NetOptions options;
      options.links = links;
      World world(make_net_transport(setup, options), {.deadline = 20s});
      body(world);
    });
  }
}

double seconds_of(const std::function<void()>& act) {
  const base::RealClock clock;
  act();
  return base::seconds(clock.now());
}

TEST(ShapedNet, AMessageTakesItsLatencyAndItsBytes) {
  for (const std::vector<int>& machines : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
    on_links(machines, {.latency = 30ms, .bytes_per_s = 20e6, .jitter = 0}, [](World& world) {
      Group& all = world.everyone();
      std::vector<float> x(500'000, static_cast<float>(world.rank() + 1));  // 2 MB: 100 ms at 20 MB/s
      const double took = seconds_of([&] {
        all.barrier().wait();  // so that nothing is sent before the receiver looks at its clock
        world.rank() == 0 ? all.send({x.data(), 500'000, Dtype::f32}, 1, kX).wait()
                          : all.recv({x.data(), 500'000, Dtype::f32}, 0, kX).wait();
      });
      EXPECT_EQ(x.back(), 1.0f);
      if (world.rank() == 0) return;
      EXPECT_GT(took, 0.129);
      EXPECT_LT(took, 1.0);
    });
  }
}

TEST(ShapedNet, PairsHaveTheirOwnBandwidthAndNicsShareIt) {
  const auto time_of = [](LinkModel::Contention share) {
    double took = 0;
    on_links({0, 0, 0}, {.latency = 1ms, .bytes_per_s = 20e6, .jitter = 0, .contention = share}, [&](World& world) {
      Group& all = world.everyone();
      all.barrier().wait();
      std::vector<float> x(250'000);  // 1 MB: 50 ms
      const double here = seconds_of([&] {
        if (world.rank() == 2) {  // from both at once
          std::vector<float> y(250'000);
          const Work first = all.recv({x.data(), 250'000, Dtype::f32}, 0, kX), second = all.recv({y.data(), 250'000, Dtype::f32}, 1, kX);
          first.wait();
          second.wait();
        } else {
          all.send({x.data(), 250'000, Dtype::f32}, 2, kX).wait();
        }
      });
      if (world.rank() == 2) took = here;
    });
    return took;
  };
  EXPECT_THAT(time_of(LinkModel::Contention::per_pair), testing::AllOf(testing::Gt(0.045), testing::Lt(0.8)));
  EXPECT_THAT(time_of(LinkModel::Contention::per_nic), testing::Gt(0.09));
}

TEST(ShapedNet, SumsAreRightOnSlowLossyLinks) {
  on_links({0, 1, 0}, {.latency = 1ms, .bytes_per_s = 50e6, .latency_sigma = 0.5, .loss = 0.01, .retransmit_after = 5ms}, [](World& world) {
    for (const int64_t count : {1, 1000, 70'001}) {
      std::vector<float> x(static_cast<size_t>(count), static_cast<float>(world.rank() + 1));
      world.everyone().all_reduce({x.data(), count, Dtype::f32}, Reduce::sum, kX).wait();
      for (const float value : x) ASSERT_EQ(value, 6.0f);
    }
  });
}

TEST(ShapedNet, LinksThatCannotBeAreRefused) {
  auto setups = make_net_setups(1);
  NetOptions options;
  options.links = LinkModel{.bytes_per_s = 0};
  EXPECT_THROW(make_net_transport(setups[0], options), Error);
}

}  // namespace
}  // namespace cairn::comm
