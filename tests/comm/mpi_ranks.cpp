// What the mpi transport does beyond the collectives, in each of the ranks that mpirun started.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/mpi/transport.h"
#include "comm/world.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Label kW{Purpose::gradient, "w"};

Span span(std::vector<float>& x) { return {x.data(), static_cast<int64_t>(x.size()), Dtype::f32}; }

Envelope envelope(uint64_t sequence, uint32_t step = 0) { return {.group = 2, .sequence = sequence, .step = step, .signature = {}}; }

std::vector<uint8_t> bytes_of(int rank, int64_t count) {
  std::vector<uint8_t> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) x[i] = static_cast<uint8_t>(i * 7 + rank * 31 + i / 251);
  return x;
}

void wait(Transport& transport, const Completion& completion) {
  const bool done = transport.drive([&] { return completion.done(); }, transport.clock().now() + 30s, "a test");
  ASSERT_TRUE(done);
  completion.await_resume();
}

// Everybody sends around the ring; sizes on both sides of what travels with its header, and of what is cut in parts.
TEST(Mpi, BytesOfAnySizeArriveWhereTheyWereAskedFor) {
  const auto transport = make_mpi_transport({.inline_bytes = 100, .part_bytes = 1000});
  const int n = transport->size(), me = transport->rank(), next = (me + 1) % n, before = (me + n - 1) % n;
  uint64_t sequence = 0;
  for (const int64_t size : {0, 1, 99, 100, 101, 999, 1000, 1001, 2000, 12345}) {
    const std::vector<uint8_t> mine = bytes_of(me, size), theirs = bytes_of(before, size);
    std::vector<uint8_t> got(static_cast<size_t>(size));
    const Completion sent = transport->send(next, envelope(++sequence), Purpose::data, mine.data(), size);
    const Completion came = transport->recv(before, envelope(sequence), got.data(), size);
    wait(*transport, came);
    wait(*transport, sent);
    EXPECT_EQ(got, theirs) << size;
    const Completion again = transport->send(next, envelope(++sequence), Purpose::data, mine.data(), size);
    const Completion view = transport->recv_view(before, envelope(sequence), size);
    wait(*transport, view);
    wait(*transport, again);
    EXPECT_TRUE(std::equal(theirs.begin(), theirs.end(), reinterpret_cast<const uint8_t*>(view.view()))) << size;
  }
}

// In the opposite order of sending: the long ones stay with their sender until they are asked for.
TEST(Mpi, MessagesThatComeBeforeTheyAreAskedForAreKept) {
  const auto transport = make_mpi_transport();
  const int n = transport->size(), me = transport->rank(), next = (me + 1) % n, before = (me + n - 1) % n;
  const std::vector<int64_t> sizes{5, 300000, 8192, 8193, 1 << 20};
  int told = 0;
  transport->on_early([&](int from, const Envelope&) { told += from == before ? 1 : 0; });
  std::vector<std::vector<uint8_t>> mine;
  std::vector<Completion> sent;
  for (size_t i = 0; i < sizes.size(); ++i) {
    mine.push_back(bytes_of(me, sizes[i]));
    sent.push_back(transport->send(next, envelope(i), Purpose::data, mine[i].data(), sizes[i]));
  }
  EXPECT_TRUE(transport->drive([&] { return told == 5; }, transport->clock().now() + 30s, "the messages"));
  EXPECT_TRUE(sent[0].done());
  EXPECT_FALSE(sent[1].done());
  for (size_t i = sizes.size(); i-- > 0;) {
    std::vector<uint8_t> got(static_cast<size_t>(sizes[i]));
    wait(*transport, transport->recv(before, envelope(i), got.data(), sizes[i]));
    EXPECT_EQ(got, bytes_of(before, sizes[i])) << i;
  }
  for (const Completion& one : sent) wait(*transport, one);
}

TEST(Mpi, RegionsAreReadAndAddedNowOrLater) {
  const auto transport = make_mpi_transport({.inline_bytes = 64, .part_bytes = 1000});
  const int n = transport->size(), me = transport->rank(), before = (me + n - 1) % n;
  std::vector<float> mine(1001);
  std::iota(mine.begin(), mine.end(), static_cast<float>(me * 10000));
  std::vector<float> read(500), sum(1001, 0.5f), none;
  const Completion early = transport->pull(before, envelope(1), 100 * 4, read.data(), 500 * 4, PullMode::replace, Dtype::f32);
  const Completion region = transport->expose(envelope(1), Purpose::parameter, mine.data(), 1001 * 4);
  const Completion late = transport->pull(before, envelope(1), 0, sum.data(), 1001 * 4, PullMode::add, Dtype::f32);
  wait(*transport, early);
  wait(*transport, late);
  for (int i = 0; i < 500; ++i) ASSERT_EQ(read[i], static_cast<float>(before * 10000 + 100 + i));
  for (int i = 0; i < 1001; ++i) ASSERT_EQ(sum[i], static_cast<float>(before * 10000 + i) + 0.5f);
  // Everybody has read before anybody withdraws.
  const int next = (me + 1) % n;
  const auto all_read = [&] { return transport->ledger().bytes_sent(me, Purpose::parameter) == 500 * 4 + 1001 * 4; };
  EXPECT_TRUE(transport->drive(all_read, transport->clock().now() + 30s, "its reader"));
  EXPECT_EQ(transport->ledger().between(me, next, Purpose::parameter), (Ledger::Total{500 * 4 + 1001 * 4, 2}));
}

TEST(Mpi, WhatIsTakenBackLeavesMemoryAloneAndTheRestInOrder) {
  const auto transport = make_mpi_transport({.inline_bytes = 100, .part_bytes = 1000});
  const int n = transport->size(), me = transport->rank(), next = (me + 1) % n, before = (me + n - 1) % n;
  const std::vector<uint8_t> mine = bytes_of(me, 3000);
  {  // a send and receives that do not live to see each other, in any state
    const Completion send = transport->send(next, envelope(1), Purpose::data, mine.data(), 3000);
    std::vector<uint8_t> into(3000);
    const Completion receive = transport->recv(before, envelope(1), into.data(), 3000);
    const Completion unasked = transport->recv(before, envelope(2), into.data(), 3000);
    const Completion pull = transport->pull(before, envelope(3), 0, into.data(), 3000, PullMode::replace, Dtype::u8);
    transport->poll();
  }
  std::vector<uint8_t> got(3000);
  const Completion send = transport->send(next, envelope(4), Purpose::data, mine.data(), 3000);
  wait(*transport, transport->recv(before, envelope(4), got.data(), 3000));
  wait(*transport, send);
  EXPECT_EQ(got, bytes_of(before, 3000));
}

TEST(Mpi, ATimerIsDoneAtItsTimeAndNotBefore) {
  const auto transport = make_mpi_transport();
  const auto begun = transport->clock().now();
  const Completion timer = transport->timer(begun + 20ms), given_up = transport->timer(begun + 10ms);
  wait(*transport, timer);
  EXPECT_GE(transport->clock().now() - begun, 20ms);
  EXPECT_LT(transport->clock().now() - begun, 10s);
  EXPECT_FALSE(transport->drive([] { return false; }, transport->clock().now() + 10ms, "nothing"));
}

TEST(Mpi, ABarrierHoldsTheOthersUntilTheLateOneComes) {
  const auto transport_size = make_mpi_transport()->size();
  harness::on_ranks(transport_size, {.on = harness::On::mpi}, [](World& world) {
    world.everyone().barrier().wait();
    const auto begun = world.wall().now();
    if (world.rank() == 0) world.timer(world.clock().now() + 100ms).wait();
    world.everyone().barrier().wait();
    EXPECT_GE(world.wall().now() - begun, 80ms);  // the first barrier let them go at about the same time
  });
}

TEST(Mpi, AFailingRankIsNamedToAllWithItsReason) {
  const int n = make_mpi_transport()->size();
  const harness::Run run = harness::on_ranks(n, {.on = harness::On::mpi, .expect_errors = true}, [](World& world) {
    std::vector<float> x(100000);
    world.everyone().all_reduce(span(x), Reduce::sum, kW).wait();
    if (world.rank() == 1) throw Error(Error::Kind::out_of_memory, "its disk is full of cats");
    world.everyone().all_reduce(span(x), Reduce::sum, kW).wait();
  });
  const int me = run.errors.begin()->first;
  const Error& error = run.error_on(me);
  EXPECT_THAT(error.what(), HasSubstr("its disk is full of cats"));
  EXPECT_EQ(error.kind(), me == 1 ? Error::Kind::out_of_memory : Error::Kind::lost_peer);
  EXPECT_TRUE(me == 1 || error.peer() == 1) << error.peer();
}

TEST(Mpi, AnotherCallThanThePeersIsNamedOnEveryRank) {
  const int n = make_mpi_transport()->size();
  for (const int64_t count : {12, 50000}) {
    const harness::Run run = harness::on_ranks(n, {.on = harness::On::mpi, .deadline = 20s, .expect_errors = true}, [&](World& world) {
      std::vector<float> x(static_cast<size_t>(count + 1));
      if (world.rank() == 1) x.pop_back();
      world.everyone().all_reduce(span(x), Reduce::sum, kW).wait();
    });
    ASSERT_EQ(run.errors.size(), 1u);
    const Error& error = run.errors.begin()->second;
    EXPECT_THAT(error.what(), HasSubstr("rank 1 "));
    EXPECT_TRUE(n == 2 || error.peer() == 1) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(count) + " f32"));
  }
}

TEST(Mpi, ARankThatHasLeftIsNamedToWhoeverWaitsForIt) {
  World world(make_mpi_transport(), {.deadline = 20s});
  if (world.rank() != 0) return;
  std::vector<float> x(3);
  try {
    world.everyone().recv(span(x), 1, kW).wait();
    FAIL() << "received from a rank that has left";
  } catch (const Error& error) {
    EXPECT_EQ(error.peer(), 1);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 lost: it has ended its work and will not take part in send of w, 3 f32"));
  }
}

TEST(Mpi, WorldsFollowEachOtherWithoutMixingTheirMessages) {
  for (int round = 0; round < 5; ++round) {
    World world(make_mpi_transport());
    std::vector<float> x(20000, static_cast<float>(round + world.rank()));
    world.everyone().all_reduce(span(x), Reduce::sum, kW).wait();
    const int n = world.size();
    EXPECT_EQ(x[19999], static_cast<float>(n * round + n * (n - 1) / 2));
  }
}

}  // namespace
}  // namespace cairn::comm
