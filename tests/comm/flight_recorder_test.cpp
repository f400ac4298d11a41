#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/random.h"
#include "comm/flight/log.h"
#include "comm/flight/recorder.h"
#include "comm/transport.h"
#include "comm/world.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

Envelope envelope_of(uint64_t sequence) {
  Envelope envelope;
  envelope.group = 4;
  envelope.sequence = sequence;
  envelope.signature = {.kind = OperationKind::all_reduce, .dtype = Dtype::f32, .count = 3};
  std::strcpy(envelope.what, "layers.7.mlp");
  return envelope;
}

struct Recorded {
  std::shared_ptr<FlightMemory> memory = make_flight_memory();
  base::VirtualClock clock;
  FlightRecorder recorder{memory, clock, 1000s, 2, 4};
  FlightLog log() const { return *read_flight_log(*memory); }
};

TEST(FlightRecorder, MemoryThatNobodyAttachedToHasNoLog) { EXPECT_FALSE(read_flight_log(*make_flight_memory()).has_value()); }

TEST(FlightRecorder, TellsWhatARankDoes) {
  Recorded on;
  on.recorder.set_host("node7");
  on.recorder.set_run("/runs/a");
  on.recorder.set_role(9);
  on.recorder.add_group(4, "", {2, 3});
  on.recorder.name_group({2, 3}, "tp");
  on.clock.advance_to(5s);
  on.recorder.begin_step(17);
  on.recorder.set_activity(Activity::loading);
  on.clock.advance_to(6s);
  on.recorder.set_activity(Activity::computing);
  const uint64_t operation = on.recorder.begin_operation(envelope_of(8), Purpose::gradient, 12, -1, false, on.clock.now());
  on.recorder.begin_wait(operation);
  on.clock.advance_to(8s);
  FlightLog log = on.log();
  EXPECT_EQ(log.rank, 2);
  EXPECT_EQ(log.size, 4);
  EXPECT_EQ(log.host, "node7");
  EXPECT_EQ(log.run, "/runs/a");
  EXPECT_EQ(log.role, 9u);
  EXPECT_EQ(log.step, 17);
  EXPECT_EQ(log.activity, Activity::computing);
  EXPECT_EQ(log.activity_since, 1006s);
  EXPECT_EQ(log.waiting, operation);
  EXPECT_EQ(log.waiting_since, 1006s);
  ASSERT_EQ(log.groups.size(), 1u);
  EXPECT_EQ(log.groups[0].name, "tp");
  EXPECT_THAT(log.groups[0].ranks, ElementsAre(2, 3));
  EXPECT_EQ(log.groups[0].next_sequence, 9u);
  ASSERT_EQ(log.operations.size(), 1u);
  EXPECT_EQ(log.operations[0].label, "layers.7.mlp");
  EXPECT_EQ(log.operations[0].kind, OperationKind::all_reduce);
  EXPECT_EQ(log.operations[0].purpose, Purpose::gradient);
  EXPECT_EQ(log.operations[0].bytes, 12);
  EXPECT_TRUE(log.operations[0].open());
  on.recorder.end_operation(operation, false);
  on.recorder.end_wait(operation, false);
  on.recorder.end_step();
  log = on.log();
  EXPECT_FALSE(log.waiting.has_value());
  EXPECT_EQ(log.operations[0].ended, 1008s);
  EXPECT_EQ(log.operations[0].waited, 2s);
  EXPECT_FALSE(log.operations[0].open());
  ASSERT_EQ(log.steps.size(), 1u);
  EXPECT_EQ(log.steps[0].step, 17);
  EXPECT_EQ(log.steps[0].ended - log.steps[0].begun, 3s);
  EXPECT_EQ(log.steps[0].waited, 2s);
  EXPECT_EQ(log.steps[0].loading, 1s);
}

TEST(FlightRecorder, AFailedOperationStaysWhatTheRankWaitedFor) {
  Recorded on;
  const uint64_t operation = on.recorder.begin_operation(envelope_of(0), Purpose::data, 12, -1, false, 0s);
  on.recorder.begin_wait(operation);
  on.recorder.end_operation(operation, true);
  on.recorder.end_wait(operation, true);
  const FlightLog log = on.log();
  EXPECT_EQ(log.waiting, operation);
  EXPECT_TRUE(log.operations[0].open());
}

TEST(FlightRecorder, KeepsTheLastOperationsInOrder) {
  Recorded on;
  constexpr uint64_t kAll = 3 * kFlightOperations + 7;
  for (uint64_t i = 0; i < kAll; ++i)
    on.recorder.end_operation(on.recorder.begin_operation(envelope_of(i), Purpose::data, 1, -1, false, 0s), false);
  const FlightLog log = on.log();
  ASSERT_EQ(log.operations.size(), static_cast<size_t>(kFlightOperations));
  for (size_t i = 0; i < log.operations.size(); ++i) {
    EXPECT_EQ(log.operations[i].sequence, kAll - kFlightOperations + i);
    EXPECT_EQ(log.operations[i].number, log.operations[i].sequence);
  }
  EXPECT_EQ(log.operation(kAll - 1)->sequence, kAll - 1);
  EXPECT_EQ(log.operation(3), nullptr);
}

TEST(FlightRecorder, GroupsBeyondTheTableAreNotRecorded) {
  Recorded on;
  for (uint64_t id = 0; id < kFlightGroups + 5; ++id) on.recorder.add_group(2 * id, "", {2, 3});
  EXPECT_EQ(on.log().groups.size(), static_cast<size_t>(kFlightGroups));
  EXPECT_EQ(on.log().groups_missed, 5);
}

// The writer laps the ring again and again; what a reader gets always belongs together.
TEST(FlightRecorder, AReaderBesideTheWriterSeesWholeEntries) {
  const auto memory = make_flight_memory();
  const base::RealClock clock;
  FlightRecorder recorder(memory, clock, 0s, 0, 2);
  const std::jthread writer([&](const std::stop_token& stop) {  // ends with the test
    for (uint64_t i = 0; !stop.stop_requested(); ++i) {
      const uint64_t operation = recorder.begin_operation(envelope_of(i), Purpose::data, static_cast<int64_t>(3 * i), 1, (i & 1) != 0,
                                                          std::chrono::nanoseconds(static_cast<int64_t>(7 * i)));
      recorder.end_operation(operation, false);
    }
  });
  int64_t seen = 0;
  for (int look = 0; look < 400 || seen < 50'000; ++look) {
    const FlightLog log = *read_flight_log(*memory);
    for (const FlightLog::Operation& one : log.operations) {
      ASSERT_EQ(one.number, one.sequence);
      ASSERT_EQ(one.bytes, static_cast<int64_t>(3 * one.sequence));
      ASSERT_EQ(one.sends, (one.sequence & 1) != 0);
      ASSERT_EQ(one.entered.count(), static_cast<int64_t>(7 * one.sequence));
      ASSERT_EQ(one.label, "layers.7.mlp");
    }
    seen += static_cast<int64_t>(log.operations.size());
  }
}

TEST(FlightRecorder, MemoryFullOfNonsenseIsReadWithoutHarm) {
  const base::Random random(5);
  const auto memory = make_flight_memory();
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(memory.get());
  for (size_t i = 0; i < sizeof(FlightMemory) / 8; ++i) words[i] = random.bits64(i);
  memory->attached = 1;
  memory->operations_begun = kFlightOperations;
  memory->messages_ended = kFlightMessages;
  memory->steps_begun = kFlightSteps;
  memory->groups_known = kFlightGroups;
  for (size_t i = 0; i < memory->operations.size(); ++i) memory->operations[i].stamp = i + 1;
  const FlightLog log = *read_flight_log(*memory);
  EXPECT_EQ(log.operations.size(), memory->operations.size());
  for (const FlightLog::Operation& one : log.operations) EXPECT_LE(one.label.size(), static_cast<size_t>(kFlightNameBytes));
}

// What one operation costs: its records, those of two messages, and the wait. The best of many batches, because the machine is shared.
TEST(FlightRecorder, AnOperationCostsAtMostFiveMicroseconds) {
  const auto memory = make_flight_memory();
  const base::RealClock clock;
  FlightRecorder recorder(memory, clock, 0s, 0, 2);
  recorder.add_group(4, "dp", {0, 1});
  auto best = std::chrono::nanoseconds::max();
  for (int batch = 0; batch < 50; ++batch) {
    const auto begun = clock.now();
    for (uint64_t i = 0; i < 200; ++i) {
      const uint64_t operation = recorder.begin_operation(envelope_of(i), Purpose::data, 12, -1, false, clock.now());
      for (const bool outgoing : {false, true}) {
        Transfer transfer;
        transfer.peer = 1;
        transfer.outgoing = outgoing;
        recorder.posted(transfer, 12, operation, clock.now());
        recorder.finished(transfer);
      }
      recorder.begin_wait(operation);
      recorder.end_operation(operation, false);
      recorder.end_wait(operation, false);
    }
    best = std::min(best, (clock.now() - begun) / 200);
  }
  EXPECT_LT(best, 5us);
}

class FlightOn : public testing::TestWithParam<harness::On> {};

TEST_P(FlightOn, RecordsCollectivesMessagesAndBytes) {
  std::mutex lock;
  std::vector<FlightLog> logs(3);
  harness::on_ranks(3, {.on = GetParam()}, [&](World& world) {
    std::vector<float> x(3000, 1);
    world.everyone().all_reduce({x.data(), 3000}, Reduce::sum, {Purpose::gradient, "w"}).wait();
    if (world.rank() != 1) {
      Group& pair = world.group({0, 2}, "ends");
      const Work work = world.rank() == 0 ? pair.send({x.data(), 1000}, 1, {Purpose::activation, "hidden"})
                                          : pair.recv({x.data(), 1000}, 0, {Purpose::activation, "hidden"});
      work.wait();
    }
    world.everyone().barrier("the end").wait();
    ASSERT_NE(world.transport().recorder(), nullptr);
    const std::lock_guard guard(lock);
    logs[static_cast<size_t>(world.rank())] = *read_flight_log(*world.transport().recorder()->memory());
  });
  for (int rank = 0; rank < 3; ++rank) {
    const FlightLog& log = logs[static_cast<size_t>(rank)];
    EXPECT_EQ(log.rank, rank);
    ASSERT_EQ(log.operations.size(), rank == 1 ? 2u : 3u);
    EXPECT_EQ(log.operations[0].kind, OperationKind::all_reduce);
    EXPECT_EQ(log.operations[0].label, "w");
    EXPECT_EQ(log.operations[0].bytes, 12000);
    for (const FlightLog::Operation& one : log.operations) {
      EXPECT_FALSE(one.open());
      EXPECT_GE(*one.ended, one.entered);
    }
    ASSERT_GE(log.groups.size(), 1u);
    EXPECT_THAT(log.groups[0].ranks, ElementsAre(0, 1, 2));
    EXPECT_EQ(log.groups[0].next_sequence, 2u);
    if (rank == 1) continue;
    EXPECT_EQ(log.operations[1].kind, OperationKind::send_recv);
    EXPECT_EQ(log.operations[1].peer, 2 - rank);
    EXPECT_EQ(log.operations[1].sends, rank == 0);
    EXPECT_EQ(log.groups[1].name, "ends");
    for (const FlightLog::Peer& peer : log.peers) {
      EXPECT_EQ(peer.sending, 0);
      EXPECT_EQ(peer.awaited, 0);
      EXPECT_EQ(peer.posted_bytes, peer.completed_bytes);
      const int64_t bytes = rank == 0 ? peer.posted_bytes : peer.received_bytes;
      EXPECT_TRUE(peer.rank != 2 - rank || bytes >= 4000) << bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, FlightOn, testing::Values(harness::On::local, harness::On::net, harness::On::machines));

}  // namespace
}  // namespace cairn::comm
