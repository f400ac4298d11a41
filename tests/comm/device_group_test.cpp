// Groups with device-to-device communication: order, waiting, failures. The device here is a script.
#include "comm/device_group.h"

#include <map>
#include <memory>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/collectives/ring_traffic.h"
#include "comm/device_transport.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using harness::on_ranks;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Label kW{Purpose::gradient, "w"};
constexpr int kInfeasible = 1 << 30;

int a_stream = 0;  // stands for the stream that is current
void* current(int device) {
  EXPECT_EQ(device, 7);
  return &a_stream;
}
Span on_device(std::vector<float>& x) { return {x.data(), static_cast<int64_t>(x.size()), Dtype::f32, &current}; }

// After how many polls a job is queued, done, or fails.
struct Script {
  int queued = 0;
  int done = 1;
  int fails = kInfeasible;
};

// What happened to one rank's jobs, in order.
struct Seen {
  std::vector<std::string> events;
  int looks = 0;
};

struct FakeJob final : DeviceJob {
  FakeJob(Seen& what, const Script& how, DeviceCall on) : seen(what), script(how), call(std::move(on)) {}

  State state() const override {
    if (cancelled || looks >= script.fails) return State::failed;
    return looks >= script.done ? State::done : looks >= script.queued ? State::queued : State::waiting;
  }
  Error error() const override { return {Error::Kind::lost_peer, "the device broke"}; }
  void order(void* stream) override {
    EXPECT_EQ(stream, &a_stream);
    seen.events.push_back("order " + call.name);
  }
  void cancel() noexcept override {
    if (state() == State::done) return;
    cancelled = true;
    seen.events.push_back("cancel " + call.name);
  }

  Seen& seen;
  Script script;
  DeviceCall call;
  int looks = 0;
  bool cancelled = false;
};

class FakeGroup final : public DeviceGroup {
 public:
  FakeGroup(Seen& seen, const Script& script) : seen_(seen), script_(script) {}
  int device() const override { return 7; }
  std::shared_ptr<DeviceJob> start(DeviceCall call) override {
    EXPECT_EQ(call.after, &a_stream);
    seen_.events.push_back((call.sends ? "start, sending, " : "start ") + call.name);
    jobs_.push_back(std::make_shared<FakeJob>(seen_, script_, std::move(call)));
    return jobs_.back();
  }
  bool advance() override {
    ++seen_.looks;
    std::erase_if(jobs_, [](const auto& job) { return job->state() >= DeviceJob::State::done; });
    if (!jobs_.empty()) ++jobs_.front()->looks;
    return !jobs_.empty();
  }

 private:
  Seen& seen_;
  Script script_;
  std::vector<std::shared_ptr<FakeJob>> jobs_;
};

struct Fixture {
  explicit Fixture(int ranks, Script script = {}) : seen(static_cast<size_t>(ranks)), options{.deadline = 60s} {
    options.wrap = [this, script](std::unique_ptr<Transport> host) {
      return make_device_transport(std::move(host), [this, script](Transport& inside, const std::vector<int>&, uint64_t) {
        return std::make_shared<FakeGroup>(seen[inside.rank()], script);
      });
    };
  }
  std::vector<Seen> seen;
  harness::Options options;
};

TEST(DeviceGroups, WaitOrdersTheStreamAndDoesNotBlockTheHost) {
  Fixture fixture(2, {.queued = 3, .done = 50});
  on_ranks(2, fixture.options, [&](World& world) {
    std::vector<float> x(12);
    const Work work = world.everyone().all_reduce(on_device(x), Reduce::sum, kW);
    work.wait();
    EXPECT_FALSE(work.ready());
    EXPECT_LT(fixture.seen[world.rank()].looks, 40);
    const std::string name = "all_reduce of w on the device, 12 f32";
    EXPECT_THAT(fixture.seen[world.rank()].events, ElementsAre("start " + name, "order " + name));
    work.wait_host();
    EXPECT_TRUE(work.ready());
    EXPECT_GE(fixture.seen[world.rank()].looks, 50);
    EXPECT_EQ(world.everyone().history().back().name, name);
    EXPECT_FALSE(world.everyone().history().back().failed);
  });
}

TEST(DeviceGroups, OperationsCompleteInTheOrderOfTheirStartHostOnesToo) {
  Fixture fixture(3, {.done = 5});
  on_ranks(3, fixture.options, [&](World& world) {
    std::vector<float> x(5), y(7, 1.0f);
    const Work first = world.everyone().broadcast(on_device(x), 1, kW);
    const Work second = world.everyone().all_reduce({y.data(), 7, Dtype::f32}, Reduce::sum, kW);
    const Work third = world.everyone().all_reduce(on_device(x), Reduce::max, kW);
    second.wait();
    EXPECT_TRUE(first.ready());
    EXPECT_EQ(y[6], 3.0f);
    Work::all({first, second, third}).wait_host();
    EXPECT_TRUE(third.ready());
  });
}

TEST(DeviceGroups, WhereNobodyWaitsTheNextOperationLetsTheFormerComplete) {
  Fixture fixture(2);
  on_ranks(2, fixture.options, [&](World& world) {
    std::vector<float> x(5);
    std::vector<Work> works;
    for (int k = 0; k < 20; ++k) {
      works.push_back(world.everyone().all_reduce(on_device(x), Reduce::sum, kW));
      works.back().wait();
      world.everyone().barrier().wait();  // so that the roll calls are there
    }
    for (const Work& work : works) EXPECT_TRUE(work.ready());
  });
}

TEST(DeviceGroups, AtTheDeadlineWhoDidNotComeIsNamedAndTheDeviceStopped) {
  Fixture fixture(3, {.done = kInfeasible});
  fixture.options.deadline = 300ms;
  fixture.options.expect_errors = true;
  const harness::Run run = on_ranks(3, fixture.options, [&](World& world) {
    std::vector<float> x(12);
    if (world.rank() == 1) return world.timer(2s).wait();
    const Work work = world.everyone().all_reduce(on_device(x), Reduce::sum, kW);
    work.wait();
    work.wait_host();
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(run.error_on(rank).kind(), Error::Kind::lost_peer);
    EXPECT_EQ(run.error_on(rank).peer(), 1);
    EXPECT_THAT(run.error_on(rank).what(), HasSubstr("rank 1 lost: silent for 0.3 s in all_reduce of w on the device, 12 f32"));
    EXPECT_EQ(fixture.seen[rank].events.back(), "cancel all_reduce of w on the device, 12 f32");
  }
}

TEST(DeviceGroups, WhereAllCameNobodyIsBlamed) {
  Fixture fixture(2, {.done = kInfeasible});
  fixture.options.deadline = 300ms;
  fixture.options.expect_errors = true;
  const harness::Run run = on_ranks(2, fixture.options, [&](World& world) {
    std::vector<float> x(12);
    world.everyone().all_reduce(on_device(x), Reduce::sum, kW).wait_host();
  });
  EXPECT_THAT(run.error_on(0).what(), HasSubstr("not done after 0.3 s though all ranks are in it: all_reduce of w on the device"));
}

TEST(DeviceGroups, ALostRankIsNamedAndTheDeviceStopped) {
  Fixture fixture(3, {.done = kInfeasible});
  fixture.options.lost_after = 100ms;
  const auto faults = harness::Faults().lose({.rank = 2, .before_collective = 1});
  const harness::Run run = on_ranks(3, fixture.options, faults, [&](World& world) {
    std::vector<float> x(12);
    world.everyone().barrier().wait();
    world.everyone().all_reduce(on_device(x), Reduce::sum, kW).wait_host();
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(run.error_on(rank).peer(), 2);
    EXPECT_THAT(run.error_on(rank).what(), HasSubstr("rank 2 lost"));
    EXPECT_THAT(fixture.seen[rank].events.back(), HasSubstr("cancel all_reduce of w on the device"));
  }
}

TEST(DeviceGroups, AnotherCallIsNamedOnBothSides) {
  for (const bool on_host : {false, true}) {
    Fixture fixture(2, {.done = kInfeasible});
    fixture.options.expect_errors = true;
    const harness::Run run = on_ranks(2, fixture.options, [&](World& world) {
      std::vector<float> x(12);
      if (world.rank() == 0) {
        world.everyone().all_reduce(on_device(x), Reduce::sum, kW).wait_host();
      } else if (on_host) {
        world.everyone().all_reduce({x.data(), 12, Dtype::f32}, Reduce::sum, kW).wait();
      } else {
        world.everyone().broadcast(on_device(x), 0, kW).wait_host();
      }
    });
    for (const int rank : {0, 1}) {
      EXPECT_THAT(run.error_on(rank).what(), HasSubstr("rank 0 called all_reduce of w on the device, 12 f32"));
      EXPECT_THAT(run.error_on(rank).what(),
                  HasSubstr(on_host ? "rank 1 called all_reduce of w, 12 f32" : "rank 1 called broadcast of w on"));
    }
  }
}

TEST(DeviceGroups, ABrokenDeviceBreaksTheGroup) {
  Fixture fixture(1, {.done = kInfeasible, .fails = 4});
  fixture.options.expect_errors = true;
  const harness::Run run = on_ranks(1, fixture.options, [&](World& world) {
    std::vector<float> x(12);
    const Work work = world.everyone().all_reduce(on_device(x), Reduce::sum, kW);
    EXPECT_THROW(work.wait_host(), Error);
    EXPECT_THROW(work.wait(), Error);
    world.everyone().all_reduce(on_device(x), Reduce::sum, kW).wait();
  });
  EXPECT_THAT(run.error_on(0).what(), HasSubstr("the device broke (operation 0 of ranks 0)"));
}

TEST(DeviceGroups, SendAndRecvGoTheirOwnWay) {
  Fixture fixture(2, {.done = 3});
  on_ranks(2, fixture.options, [&](World& world) {
    std::vector<float> x(5), y(5);
    const int peer = 1 - world.rank();
    const Work sent = world.everyone().send(on_device(x), peer, kW), received = world.everyone().recv(on_device(y), peer, kW);
    Work::all({sent, received}).wait_host();
    EXPECT_EQ(fixture.seen[world.rank()].events[0], "start, sending, send of w on the device, 5 f32");
    EXPECT_EQ(world.ledger().bytes_sent(world.rank(), Purpose::gradient), 5 * 4);
  });
}

TEST(DeviceGroups, TheLedgerBooksWhatARingSends) {
  Fixture fixture(4);
  const harness::Run run = on_ranks(4, fixture.options, [&](World& world) {
    std::vector<float> x(100);
    world.everyone().all_reduce(on_device(x), Reduce::sum, kW).wait_host();
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(run.ledger.between(rank, (rank + 1) % 4, Purpose::gradient).bytes, 2 * 400 * 3 / 4);
}

TEST(DeviceGroups, ATransportWithoutDevicesSaysSo) {
  on_ranks(1, [](World& world) {
    std::vector<float> x(2);
    try {
      world.everyone().all_reduce(on_device(x), Reduce::sum, kW).wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("this world's transport knows no devices"));
    }
  });
}

// All that is sent arrives: summed over the ranks, what each kind must move.
TEST(RingTraffic, AddsUpToWhatEachKindMoves) {
  constexpr int kRanks = 5;
  std::vector<float> memory(100);
  const std::vector<int64_t> counts{30, 0, 7, 20, 43};
  const auto total = [&](OperationKind kind, const Arguments& arguments) {
    int64_t bytes = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const Flow& flow : ring_traffic(kind, arguments, rank, kRanks, rank == 3)) {
        EXPECT_NE(flow.to, rank);
        bytes += flow.bytes;
      }
    }
    return bytes;
  };
  const Arguments uneven{.out = on_device(memory), .in = on_device(memory), .root = 2, .counts = counts, .in_counts = counts};
  EXPECT_EQ(total(OperationKind::all_reduce, uneven), 2 * 4 * 400);
  EXPECT_EQ(total(OperationKind::reduce, uneven), 4 * 400);
  EXPECT_EQ(total(OperationKind::broadcast, uneven), 4 * 400);
  EXPECT_EQ(total(OperationKind::all_gather, uneven), 4 * 400);
  EXPECT_EQ(total(OperationKind::reduce_scatter, uneven), 4 * 400);
  EXPECT_EQ(total(OperationKind::scatter, uneven), 4 * (100 - 7));
  EXPECT_EQ(total(OperationKind::all_to_all, uneven), 4 * 400);
  EXPECT_EQ(total(OperationKind::send_recv, uneven), 400);
  EXPECT_TRUE(ring_traffic(OperationKind::all_reduce, uneven, 0, 1, false).empty());
}

}  // namespace
}  // namespace cairn::comm
