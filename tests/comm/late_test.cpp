// Whom a rank blames in a ring or a tree, where the rank it waits for may itself be waiting.
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/collectives/choose_algorithm.h"
#include "comm/net/transport.h"
#include "comm/world.h"
#include "harness/link_facts_transport.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Label kW{Purpose::gradient, "w"};
constexpr int kRanks = 10;
constexpr int kLate = 6;

// Facts by which ten ranks choose this for a few elements.
LinkFacts facts_for(AllReduce algorithm) {
  switch (algorithm) {
    case AllReduce::ring:
      return {.latency = 0ns, .overhead = 0ns, .bytes_per_s = 1e3, .incast_penalty = 100};
    case AllReduce::halving:
      return {.latency = 0ns, .overhead = 1ms, .bytes_per_s = 1e12, .incast_penalty = 0};
    case AllReduce::tree:
      return {.latency = 0ns, .overhead = 1ms, .bytes_per_s = 1e12, .incast_penalty = 0, .ranks_per_core = 100};
    case AllReduce::direct:
      break;
  }
  return {.latency = 1s, .overhead = 0ns, .bytes_per_s = 1e12, .incast_penalty = 0};
}

class Late : public testing::TestWithParam<AllReduce> {};

TEST_P(Late, RankIsNamedToAllAndNotWhoWaitsForItToo) {
  const LinkFacts facts = facts_for(GetParam());
  ASSERT_EQ(choose_all_reduce(3 * 4, kRanks, {}, facts), GetParam());
  auto setups = make_net_setups(kRanks);
  std::vector<std::string> errors(kRanks);
  std::vector<int> named(kRanks, -1);
  const auto body = [&](int rank) {
    World world(harness::with_link_facts(make_net_transport(std::move(setups[rank])), facts));
    std::vector<float> x(3, 1.0f);
    const Span span{x.data(), 3, Dtype::f32};
    world.everyone().all_reduce(span, Reduce::sum, kW).wait();
    EXPECT_EQ(x[2], 10.0f);
    world.everyone().set_deadline(300ms);
    try {
      if (rank == kLate) {
        world.timer(world.clock().now() + 700ms).wait();
      } else {
        world.everyone().all_reduce(span, Reduce::sum, kW).wait();
      }
    } catch (const Error& error) {
      errors[rank] = error.what();
      named[rank] = error.peer();
      world.fail(error);
    }
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(body, rank);
  threads.clear();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kLate) continue;
    EXPECT_THAT(errors[rank], HasSubstr("rank 6 lost: silent for 0.3 s in all_reduce of w, 3 f32")) << rank;
    EXPECT_EQ(named[rank], kLate) << rank;
  }
}

// Rank 1 gives up on rank 2 and withdraws its message while rank 0 reads it; rank 1 reports the reason a little later.
TEST(LateWord, WhoTakesAMessageBackIsNotBlamedButWhomItBlames) {
  constexpr int64_t kCount = 100'000;
  const harness::Options with{.on = harness::On::net, .deadline = 20s, .expect_errors = true};
  const harness::Run run = harness::on_ranks(3, with, [](World& world) {
    const int rank = world.rank();
    Group& group = world.everyone();
    const auto memory = group.allocate(kCount * 4);
    const Span x{memory.get(), kCount, Dtype::f32};
    const auto begun = world.clock().now();
    if (rank == 1) group.set_deadline(100ms);
    if (rank == 2) world.timer(begun + 200ms).wait();
    try {
      group.reduce(x, 0, Reduce::sum, kW).wait();
      group.barrier("after").wait();
    } catch (const Error&) {
      if (rank == 1) world.timer(begun + 350ms).wait();
      throw;
    }
  });
  EXPECT_EQ(run.error_on(1).peer(), 2) << run.error_on(1).what();
  EXPECT_EQ(run.error_on(0).peer(), 2) << run.error_on(0).what();
}

INSTANTIATE_TEST_SUITE_P(In, Late, testing::Values(AllReduce::direct, AllReduce::ring, AllReduce::halving, AllReduce::tree),
                         [](const auto& one) { return std::string(name(one.param)); });

}  // namespace
}  // namespace cairn::comm
