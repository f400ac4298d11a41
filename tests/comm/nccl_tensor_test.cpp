// CUDA tensors by NCCL: one rank in this process, and two ranks in two processes that share the device (NCCL_HOSTID makes NCCL take them
// for two machines; it refuses two ranks on one device otherwise).
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/IListRef.h>
#include <ATen/ops/remainder.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "comm/nccl/transport.h"
#include "comm/net/transport.h"
#include "comm/world.h"
#include "kernels/aten.h"

namespace cairn::comm {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Label kW{Purpose::gradient, "w"};
constexpr int kSkipped = 77;

bool device_used = false;  // by this process: then it can no longer be forked

// Why NCCL cannot be used here; empty: it can.
std::string missing() {
  device_used = true;
  try {
    make_nccl_transport(nullptr, 0);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

at::Tensor on_gpu(const at::Tensor& x) { return x.to(at::kCUDA); }
at::Tensor counting(int64_t count, at::ScalarType type = at::kFloat) { return on_gpu(at::arange(count).remainder(101).to(type)); }

// Runs the body on two ranks, each in a process of its own, and gives their exit codes: 0 where all went well.
class NcclPairs : public testing::Test {
 protected:
  using Body = std::function<void(World&)>;

  // `machines`: what NCCL takes the two ranks for. It refuses two ranks on one device of one machine.
  void run(const Body& body, std::chrono::nanoseconds deadline = 30s, int machines = 2) {
    if (device_used) GTEST_SKIP() << "this process has used the device: run --gtest_filter='NcclPairs.*' alone";
    std::vector<NetSetup> setups = make_net_setups(2);
    std::fflush(nullptr);
    pid_t children[2];
    for (int rank = 0; rank < 2; ++rank) {
      children[rank] = fork();
      if (children[rank] > 0) continue;
      alarm(60);  // should it hang
      const int code = rank_main(std::move(setups[rank]), deadline, body, machines);
      std::fflush(nullptr);
      _exit(code);
    }
    std::vector<int> codes;
    for (const pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status));
    }
    if (codes[0] == kSkipped) GTEST_SKIP() << "no NCCL or no GPU here";
    EXPECT_EQ(codes[0], 0);
    EXPECT_EQ(codes[1], 0);
  }

 private:
  static int rank_main(NetSetup setup, std::chrono::nanoseconds deadline, const Body& body, int machines) {
    setenv("NCCL_HOSTID", std::to_string(setup.rank % machines).c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    const int rank = setup.rank;
    if (!missing().empty()) return kSkipped;
    try {
      World world(make_nccl_transport(make_net_transport(std::move(setup)), 0), {.deadline = deadline});
      body(world);
    } catch (const std::exception& error) {
      std::cerr << "rank " << rank << ": " << error.what() << std::endl;
      return 1;
    }
    return HasFailure() ? 1 : 0;
  }
};

TEST_F(NcclPairs, EveryCollectiveGivesWhatPlainLoopsGive) {
  run([](World& world) {
    Group& all = world.everyone();
    const int me = world.rank();
    for (const int64_t count : {0, 1, 97, 65537}) {
      const at::Tensor mine = counting(count) + me;
      at::Tensor x = mine.clone();
      all.all_reduce(x, Reduce::sum, kW).wait();
      EXPECT_TRUE(at::equal(x, 2 * counting(count) + 1)) << count;
      x = mine.clone();
      all.reduce(x, 1, Reduce::max, kW).wait();
      EXPECT_TRUE(at::equal(x, me == 1 ? counting(count) + 1 : mine)) << count;
      x = mine.clone();
      all.broadcast(x, 1, kW).wait();
      EXPECT_TRUE(at::equal(x, counting(count) + 1)) << count;
    }
    const std::vector<int64_t> uneven{5, 2};
    for (const std::vector<int64_t>& counts : {std::vector<int64_t>{4, 4}, uneven}) {
      const int64_t whole = counts[0] + counts[1], begin = me == 0 ? 0 : counts[0];
      const at::Tensor expected = at::cat({counting(counts[0]), counting(counts[1]) + 10});
      const at::Tensor part = counting(counts[me]) + 10 * me;
      at::Tensor out = on_gpu(at::zeros(whole));
      all.all_gather(out, part, kW, counts).wait();
      EXPECT_TRUE(at::equal(out, expected));
      out.zero_();
      all.gather(out, part, 0, kW, counts).wait();
      EXPECT_TRUE(me != 0 || at::equal(out, expected));
      at::Tensor back = on_gpu(at::zeros(counts[me]));
      all.scatter(back, expected, 1, kW, counts).wait();
      EXPECT_TRUE(at::equal(back, part));
      all.reduce_scatter(back, counting(whole) + me, Reduce::sum, kW, counts).wait();
      EXPECT_TRUE(at::equal(back, (2 * counting(whole) + 1).narrow(0, begin, counts[me])));
    }
    // 0 keeps 3 and gives 1; 1 gives 2 and keeps none.
    const at::Tensor in = me == 0 ? on_gpu(at::arange(4).to(at::kFloat)) : on_gpu(at::arange(10, 12).to(at::kFloat));
    at::Tensor out = on_gpu(at::zeros(me == 0 ? 5 : 1));
    all.all_to_all(out, in, kW, me == 0 ? std::vector<int64_t>{3, 2} : std::vector<int64_t>{1, 0},
                   me == 0 ? std::vector<int64_t>{3, 1} : std::vector<int64_t>{2, 0})
        .wait();
    EXPECT_EQ(out.cpu()[-1].item<float>(), me == 0 ? 11.0f : 3.0f);
    all.barrier().wait();
    for (const OperationRecord& one : all.history()) EXPECT_FALSE(one.failed) << one.name;
  });
}

TEST_F(NcclPairs, MessagesCrossWithoutWaitingForEachOther) {
  run([](World& world) {
    const int me = world.rank(), peer = 1 - me;
    const int64_t count = 1 << 22;  // too long for any buffer in between
    const at::Tensor mine = counting(count) + me;
    at::Tensor theirs = at::zeros_like(mine), sum = mine.clone();
    const Work sent = world.everyone().send(mine, peer, kW);  // both send first
    const Work reduced = world.everyone().all_reduce(sum, Reduce::sum, kW);
    const Work received = world.everyone().recv(theirs, peer, kW);
    Work::all({sent, reduced, received}).wait_host();
    EXPECT_TRUE(at::equal(theirs, counting(count) + peer));
    EXPECT_TRUE(at::equal(sum, 2 * counting(count) + 1));
    EXPECT_EQ(world.ledger().bytes_sent(me, Purpose::gradient), 2 * 4 * count);
    world.everyone().barrier().wait();
  });
}

TEST_F(NcclPairs, EveryGroupHasItsOwnOrderOfRanks) {
  run([](World& world) {
    const int me = world.rank();
    Group &turned = world.group({1, 0}, "turned"), &again = world.group({0, 1}, "again"), &own = world.group({me}, "own");
    ASSERT_EQ(turned.rank(), 1 - me);
    for (const int64_t count : {1, 97, 4099}) {
      at::Tensor x = counting(count) + 10 * me, out = on_gpu(at::zeros(2 * count)), sum = counting(count) + me, kept = x.clone();
      // In flight together, one per group. Groups that share ranks are used in the same order on both.
      const Work sent = turned.broadcast(x, 0, kW);  // the world's rank 1
      const Work gathered = turned.all_gather(out, counting(count) + me, kW);
      const Work reduced = again.all_reduce(sum, Reduce::sum, kW);
      own.all_reduce(kept, Reduce::sum, kW).wait();
      Work::all({sent, gathered, reduced}).wait_host();
      EXPECT_TRUE(at::equal(x, counting(count) + 10)) << count;
      EXPECT_TRUE(at::equal(out, at::cat({counting(count) + 1, counting(count)}))) << count;
      EXPECT_TRUE(at::equal(sum, 2 * counting(count) + 1)) << count;
      EXPECT_TRUE(at::equal(kept, counting(count) + 10 * me)) << count;
    }
    EXPECT_TRUE(own.history().empty());  // a group of one has nothing to do
    world.everyone().barrier().wait();
  });
}

TEST_F(NcclPairs, MessagesOfAPairArriveInOrderInEveryGroup) {
  run([](World& world) {
    const std::vector<int64_t> counts{1, 97, 1025};
    for (Group* group : {&world.everyone(), &world.group({1, 0}, "turned")}) {
      const int me = group->rank(), peer = 1 - me;
      for (const auto type : {at::kFloat, at::kBFloat16, at::kLong}) {
        std::vector<at::Tensor> received;
        std::vector<Work> under_way;
        for (const int64_t count : counts) under_way.push_back(group->send(counting(count, type) + me, peer, kW));
        for (const int64_t count : counts) {
          received.push_back(at::zeros_like(counting(count, type)));
          under_way.push_back(group->recv(received.back(), peer, kW));
        }
        for (const Work& work : under_way) work.wait_host();
        for (size_t i = 0; i < counts.size(); ++i)
          EXPECT_TRUE(at::equal(received[i], counting(counts[i], type) + peer)) << c10::toString(type) << " " << counts[i];
      }
    }
    world.everyone().barrier().wait();
  });
}

TEST_F(NcclPairs, TwoRanksOnOneGpuAreRefused) {
  run(
      [](World& world) {
        at::Tensor x = counting(10);
        try {
          world.everyone().all_reduce(x, Reduce::sum, kW).wait_host();
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("transport nccl: two ranks use one GPU. Start one rank per GPU"));
          std::cerr << error.what() << '\n';
        }
        world.timer(world.clock().now() + 1s).wait();  // the other rank gets NCCL's error too, rather than the loss of this one
      },
      30s, /*machines=*/1);
}

TEST_F(NcclPairs, ADeadRankIsNamedAndTheDeviceIsFreeAgain) {
  run([](World& world) {
    at::Tensor x = counting(1000);
    world.everyone().all_reduce(x, Reduce::sum, kW).wait_host();
    world.everyone().barrier().wait_host();  // both have it
    if (world.rank() == 1) _exit(0);
    const base::RealClock clock;
    try {
      world.everyone().all_reduce(x, Reduce::sum, kW).wait_host();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.peer(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 lost"));
      EXPECT_THAT(error.what(), HasSubstr("all_reduce of w on the device, 1000 f32"));
      std::cerr << error.what() << " after " << base::seconds(clock.now()) << " s\n";
    }
    EXPECT_EQ(counting(5).sum().item<float>(), 10.0f);
    EXPECT_LT(clock.now(), 4s);
  });
}

TEST_F(NcclPairs, ADeviceThatTheHostWaitsForIsStoppedAtTheDeadline) {
  run(
      [](World& world) {
        at::Tensor x = counting(1000);
        world.everyone().all_reduce(x, Reduce::sum, kW).wait_host();
        if (world.rank() == 1) return world.timer(world.clock().now() + 5s).wait();
        const base::RealClock clock;
        world.everyone().all_reduce(x, Reduce::sum, kW).wait();
        x.cpu();  // waits for the device, and nobody looks after the transport
        EXPECT_GT(clock.now(), 1s);
        EXPECT_LT(clock.now(), 4500ms);
        try {
          world.everyone().all_reduce(x, Reduce::sum, kW).wait();
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.peer(), 1) << error.what();
          EXPECT_THAT(error.what(), HasSubstr("rank 1 lost: silent for"));
          std::cerr << error.what() << " after " << base::seconds(clock.now()) << " s\n";
        }
      },
      1s);
}

TEST_F(NcclPairs, AnotherCallIsNamed) {
  run([](World& world) {
    at::Tensor x = counting(1000);
    world.everyone().all_reduce(x, Reduce::sum, kW).wait_host();
    try {
      if (world.rank() == 0) {
        world.everyone().all_reduce(x, Reduce::sum, kW).wait_host();
      } else {
        world.everyone().all_reduce(x.narrow(0, 0, 500), Reduce::sum, kW).wait_host();
      }
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 called all_reduce of w on the device, 500 f32"));
      world.fail(error);
    }
  });
}

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
    world = std::make_unique<World>(make_nccl_transport(make_net_transport(std::move(make_net_setups(1)[0])), 0, {.one_rank = true}),
                                    WorldOptions{.deadline = 30s});
  }
  std::unique_ptr<World> world;
};

TEST(NcclTransport, RefusesADeviceThatIsNotThere) {
  device_used = true;
  try {
    make_nccl_transport(nullptr, -1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("transport nccl: "));
  }
}

TEST_F(Nccl, EveryCollectiveOfOneRankLeavesOrCopiesItsValues) {
  Group& all = world->everyone();
  for (const int64_t count : {0, 1, 3, 97, 65537}) {
    const at::Tensor in = counting(count);
    at::Tensor x = in.clone(), out = at::zeros_like(in);
    const auto same = [&](const Work& work, const at::Tensor& result) {
      work.wait();
      EXPECT_TRUE(at::equal(result, in)) << count;
      out.zero_();
    };
    same(all.all_reduce(x, Reduce::sum, kW), x);
    same(all.reduce(x, 0, Reduce::max, kW), x);
    same(all.broadcast(x, 0, kW), x);
    same(all.all_gather(out, in, kW), out);
    same(all.reduce_scatter(out, in, Reduce::min, kW), out);
    same(all.gather(out, in, 0, kW), out);
    same(all.scatter(out, in, 0, kW), out);
    same(all.all_to_all(out, in, kW), out);
  }
  all.barrier().wait();
  const auto history = all.history();
  ASSERT_EQ(history.size(), 5u * 8 + 1);
  EXPECT_EQ(history[1].name, "reduce of w on the device, 0 f32 max, root 0");
  for (const OperationRecord& one : history) EXPECT_TRUE(!one.failed && one.ended > one.begun) << one.name;
  EXPECT_EQ(world->ledger().total().bytes, 0);
}

TEST_F(Nccl, GroupsOfOneRankDoNotMix) {
  Group &first = world->group({0}, "first"), &second = world->group({0}, "second");
  ASSERT_NE(&first, &second);
  for (const int64_t count : {1, 97, 65537}) {
    const at::Tensor in = counting(count);
    at::Tensor x = in.clone(), y = in + 1, gathered = at::zeros_like(in), exchanged = at::zeros_like(in), scattered = at::zeros_like(in);
    const Work a = first.all_reduce(x, Reduce::sum, kW), b = second.broadcast(y, 0, kW);
    const Work c = first.all_gather(gathered, in, kW), d = second.all_to_all(exchanged, in, kW);
    const Work e = first.reduce_scatter(scattered, in, Reduce::max, kW);
    Work::all({d, b, e, c, a}).wait_host();
    EXPECT_TRUE(at::equal(x, in)) << count;
    EXPECT_TRUE(at::equal(y, in + 1)) << count;
    for (const at::Tensor& result : {gathered, exchanged, scattered}) EXPECT_TRUE(at::equal(result, in)) << count;
  }
  EXPECT_EQ(first.history().size(), 9u);
  EXPECT_EQ(second.history().size(), 6u);
  for (const Group* group : {&first, &second})
    for (const OperationRecord& one : group->history()) EXPECT_FALSE(one.failed) << one.name;
}

TEST_F(Nccl, AMessageToItselfIsRefused) {
  at::Tensor x = counting(4);
  for (const bool sends : {true, false}) {
    try {
      sends ? world->everyone().send(x, 0, kW).wait() : world->everyone().recv(x, 0, kW).wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("itself"));
    }
  }
  world->everyone().all_reduce(x, Reduce::sum, kW).wait();  // the group still works
  EXPECT_TRUE(at::equal(x, counting(4)));
}

TEST_F(Nccl, EveryDtypeAndReductionIsKnown) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte, at::kBool}) {
    for (const Reduce reduce : {Reduce::sum, Reduce::max, Reduce::min}) {
      const at::Tensor before = counting(33, type);
      at::Tensor x = before.clone();
      world->everyone().all_reduce(x, reduce, kW).wait();
      EXPECT_TRUE(at::equal(x, before)) << c10::toString(type);
    }
  }
}

TEST_F(Nccl, WaitOrdersTheStreamAndDoesNotBlockTheHost) {
  const at::Tensor big = on_gpu(at::ones({8192, 8192}));
  at::Tensor x = counting(1000), out = at::zeros_like(x), product = at::zeros_like(big);
  std::chrono::nanoseconds host{}, device{};
  for (int round = 1; round <= 2; ++round) {  // the first one loads kernels, for which CUDA waits
    const base::RealClock clock;
    for (int k = 0; k < 20; ++k) at::matmul_out(product, big, big);  // hundreds of milliseconds
    x.add_(1);
    const Work work = world->everyone().all_gather(out, x, kW);
    work.wait();
    host = clock.now();
    EXPECT_FALSE(round == 2 && work.ready());
    out.mul_(2);  // after it
    work.wait_host();
    EXPECT_TRUE(work.ready());
    device = clock.now();
    EXPECT_TRUE(at::equal(out, 2 * (counting(1000) + round)));
  }
  EXPECT_LT(4 * host, device) << "the host waited";
}

TEST_F(Nccl, WhatIsUnderWayWhenTheWorldEndsIsStopped) {
  const at::Tensor big = on_gpu(at::ones({8192, 8192}));
  at::Tensor x = counting(1000), product;
  for (int k = 0; k < 5; ++k) product = at::matmul(big, big);
  const Work work = world->everyone().all_reduce(x, Reduce::sum, kW);
  world.reset();
  EXPECT_THROW(work.wait(), Error);
  EXPECT_EQ(counting(5).sum().item<float>(), 10.0f);
}

TEST_F(Nccl, AGroupOfOneIsFreeUnlessToldOtherwise) {
  World plain(make_nccl_transport(make_net_transport(std::move(make_net_setups(1)[0])), 0));
  at::Tensor x = counting(10);
  plain.everyone().all_reduce(x, Reduce::sum, kW).wait();
  EXPECT_TRUE(plain.everyone().history().empty());
}

TEST_F(Nccl, ATensorOfTheHostAndOneOfTheDeviceDoNotMix) {
  const at::Tensor x = counting(4), y = at::zeros(4);
  try {
    world->everyone().all_gather(y, x, kW).wait();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("an operation from a tensor of cuda:0 to one of cpu"));
  }
}

}  // namespace
}  // namespace cairn::comm
