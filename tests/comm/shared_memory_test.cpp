#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/net/liveness.h"
#include "comm/shm/arena.h"
#include "comm/shm/ring_buffer.h"
#include "comm/shm/segment.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using testing::HasSubstr;

constexpr int64_t kCapacity = 4096;

// A ring in plain memory.
struct Ring {
  RingPositions positions{};
  std::unique_ptr<std::byte[]> memory = std::make_unique<std::byte[]>(kCapacity + 64);
  std::byte* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64);
  RingWriter writer{positions, aligned, kCapacity};
  RingReader reader{positions, aligned, kCapacity};

  bool write(uint64_t number, int64_t payload) {
    Record* record = writer.reserve(payload);
    if (!record) return false;
    record->kind = RecordKind::message;
    record->placed = false;
    record->bytes = record->part = payload;
    record->number = number;
    std::memset(record->payload(), static_cast<int>(number % 251), static_cast<size_t>(payload));
    writer.publish();
    return true;
  }
};

void expect_record(Record* record, uint64_t number, int64_t payload) {
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->number, number);
  ASSERT_EQ(record->part, payload);
  for (int64_t i = 0; i < payload; ++i) ASSERT_EQ(record->payload()[i], static_cast<std::byte>(number % 251)) << i;
}

TEST(SharedRing, RecordsOfAllLengthsComeOutAsTheyWentInAroundTheEndManyTimes) {
  Ring ring;
  std::mt19937 random(3);
  std::deque<std::pair<uint64_t, int64_t>> inside;
  uint64_t written = 0, refused = 0;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0) {
      const auto payload = static_cast<int64_t>(random() % static_cast<uint32_t>(ring.writer.payload_max() + 1));
      ring.write(written, payload) ? inside.emplace_back(written++, payload) : (++refused, inside.front());
    } else if (!inside.empty()) {
      Record* record = ring.reader.peek();
      expect_record(record, inside.front().first, inside.front().second);
      inside.pop_front();
      ring.reader.give_back(ring.reader.take(*record));
    } else {
      EXPECT_EQ(ring.reader.peek(), nullptr);
    }
  }
  EXPECT_GT(written, 5000u);
  EXPECT_GT(refused, 100u);
}

TEST(SharedRing, ARecordStaysWhileItIsHeldThoughLaterOnesAreGivenBack) {
  Ring ring;
  ASSERT_TRUE(ring.write(1, 700) && ring.write(2, 700) && ring.write(3, 700));
  Record* first = ring.reader.peek();
  const uint64_t held = ring.reader.take(*first);
  for (int i = 0; i < 2; ++i) ring.reader.give_back(ring.reader.take(*ring.reader.peek()));
  int more = 0;
  for (uint64_t number = 4; ring.write(number, 700); ++number) ++more;
  EXPECT_EQ(more, 1);  // four of 896 bytes fit, and the first three are still counted
  expect_record(first, 1, 700);
  ring.reader.give_back(held);
  EXPECT_TRUE(ring.write(9, 700));
}

TEST(SharedRing, WhatIsNoRecordIsRefused) {
  Ring ring;
  ASSERT_TRUE(ring.write(1, 100));
  auto* record = reinterpret_cast<Record*>(ring.aligned);
  const auto refused = [&](auto spoil) {
    Record before{};
    std::memcpy(static_cast<void*>(&before), record, sizeof before);
    spoil(*record);
    std::string text = "accepted";
    try {
      ring.reader.peek();
    } catch (const Error& error) {
      text = error.what();
    }
    std::memcpy(static_cast<void*>(record), &before, sizeof before);
    return text;
  };
  EXPECT_THAT(refused([](Record& r) { r.length = 0; }), HasSubstr("bad record"));
  EXPECT_THAT(refused([](Record& r) { r.length = 1 << 30; }), HasSubstr("bad record"));
  EXPECT_THAT(refused([](Record& r) { r.length += 64; }), HasSubstr("bad record"));
  EXPECT_THAT(refused([](Record& r) { r.part = -1; }), HasSubstr("bad record"));
  EXPECT_THAT(refused([](Record& r) { r.part = 4000; }), HasSubstr("bad record"));
  EXPECT_THAT(refused([](Record& r) { r.kind = static_cast<RecordKind>(77); }), HasSubstr("bad record"));
  EXPECT_EQ(refused([](Record&) {}), "accepted");
}

TEST(SharedRing, TwoThreadsSeeEveryRecordOnceAndWhole) {
  Ring ring;
  constexpr uint64_t kRecords = 20000;
  std::jthread sender([&ring] {
    for (uint64_t number = 0; number < kRecords;)
      ring.write(number, static_cast<int64_t>(number * 37 % 800)) ? ++number : (std::this_thread::yield(), number);
  });
  for (uint64_t number = 0; number < kRecords;) {
    Record* record = ring.reader.peek();
    if (!record) {
      std::this_thread::yield();
      continue;
    }
    expect_record(record, number, static_cast<int64_t>(number * 37 % 800));
    if (testing::Test::HasFatalFailure()) break;
    ring.reader.give_back(ring.reader.take(*record));
    ++number;
  }
}

TEST(Arena, PiecesDoNotOverlapAndFreedNeighboursMerge) {
  std::vector<std::byte> memory(64 * 4096);
  Arena arena(memory.data(), static_cast<int64_t>(memory.size()));
  void* a = arena.allocate(1);
  void* b = arena.allocate(4097);
  void* c = arena.allocate(60 * 4096);
  EXPECT_EQ(arena.offset_of(b) - arena.offset_of(a), 4096);
  EXPECT_EQ(arena.offset_of(c) - arena.offset_of(b), 2 * 4096);
  EXPECT_EQ(arena.allocate(2 * 4096), nullptr);
  arena.free(a);
  arena.free(b);
  EXPECT_EQ(arena.allocate(3 * 4096), a);
  arena.free(a);
  arena.free(c);
  EXPECT_EQ(arena.allocate(64 * 4096), a);
  EXPECT_TRUE(arena.holds(memory.data() + 5, 100));
  EXPECT_FALSE(arena.holds(memory.data() + 5, 64 * 4096));
}

TEST(SharedSegment, EachRankSeesTheOthersBoardsRingsAndArenas) {
  const int fd = SharedSegment::create(3);
  const SharedSegment one(fd, 3), other(fd, 3);
  ::close(fd);
  EXPECT_FALSE(other.board(1).read_operation());
  Envelope envelope{.group = 4, .sequence = 5, .step = 0, .signature = {.count = 6}};
  one.board(1).publish_operation(envelope);
  ASSERT_TRUE(other.board(1).read_operation());
  EXPECT_EQ(other.board(1).read_operation()->sequence, 5u);
  EXPECT_FALSE(other.board(0).read_operation() || other.board(2).read_operation());
  one.arena(2)[100] = std::byte{7};
  EXPECT_EQ(other.arena(2)[100], std::byte{7});
  EXPECT_EQ(other.arena(1)[100], std::byte{0});
  RingWriter writer = one.writer(0, 2);
  RingReader right = other.reader(0, 2), wrong = other.reader(2, 0);
  Record* record = writer.reserve(8192);
  ASSERT_NE(record, nullptr);
  record->kind = RecordKind::message;
  record->placed = false;
  record->bytes = record->part = 8192;
  writer.publish();
  EXPECT_NE(right.peek(), nullptr);
  EXPECT_EQ(wrong.peek(), nullptr);
}

TEST(Liveness, MissesAreCountedOnlyWhileSomebodyLooks) {
  using namespace std::chrono_literals;
  StatusBoard board{};
  LivenessMonitor watch(1);
  const auto silent = [&](std::chrono::nanoseconds now) {
    watch.begin(now);
    return watch.silent(0, board, now);
  };
  EXPECT_EQ(silent(10s), 0s);
  EXPECT_EQ(silent(10400ms), 400ms);
  ++board.beat;
  EXPECT_EQ(silent(10500ms), 0s);
  EXPECT_EQ(silent(10900ms), 400ms);
  EXPECT_EQ(silent(15s), 0s);  // nobody looked for four seconds
  EXPECT_EQ(silent(15400ms), 400ms);
}

TEST(Liveness, ARankThatHasLeftIsNotJudged) {
  StatusBoard board{};
  {
    const HeartbeatThread heart(board, nullptr);
    while (board.beat.load() == 0) std::this_thread::yield();
  }
  EXPECT_EQ(board.beat.load(), 0u);  // as before its first beat
}

// Buffers from the group on some ranks, private ones on others, around every threshold.
TEST(SharedMemory, AllReduceIsRightForEveryMixOfBuffersAndSizes) {
  harness::on_ranks(3, {.on = harness::On::net}, [](World& world) {
    Group& group = world.everyone();
    for (const int64_t count : {1, 3, 2048, 6144, 6147, 49152, 49153, 300001, 1500007}) {
      for (int mix = 0; mix < 8; ++mix) {
        const bool shared = (mix >> world.rank()) % 2 == 1;
        std::vector<float> mine(static_cast<size_t>(count));
        const std::shared_ptr<void> memory = group.allocate(count * 4);
        float* x = shared ? static_cast<float*>(memory.get()) : mine.data();
        for (int64_t i = 0; i < count; ++i) x[i] = static_cast<float>(world.rank() + 1) * static_cast<float>(i % 1000);
        group.all_reduce({x, count, Dtype::f32}, Reduce::sum, {Purpose::gradient, "x"}).wait();
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(x[i], 6.0f * static_cast<float>(i % 1000)) << i << " of " << count << ", mix " << mix;
      }
    }
  });
}

TEST(SharedMemory, BytesAreBookedAsOverASocket) {
  const harness::Run run = harness::on_ranks(2, {.on = harness::On::net}, [](World& world) {
    Group& group = world.everyone();
    const std::shared_ptr<void> memory = group.allocate(1 << 20);
    group.all_reduce({memory.get(), 1 << 18, Dtype::f32}, Reduce::sum, {Purpose::gradient, "x"}).wait();
  });
  EXPECT_EQ(run.ledger.bytes_sent(0, Purpose::gradient), 1 << 20);  // 2 (n - 1) / n
  EXPECT_EQ(run.ledger.bytes_sent(1, Purpose::gradient), 1 << 20);
}

TEST(SharedMemory, ASenderFarAheadIsHeldBackAndLosesNothing) {
  harness::on_ranks(2, {.on = harness::On::net}, [](World& world) {
    Group& group = world.everyone();
    constexpr int64_t kCount = 100000;
    std::vector<std::vector<float>> x(60, std::vector<float>(kCount, static_cast<float>(world.rank())));
    std::vector<Work> work;
    if (world.rank() == 0) {
      for (size_t i = 0; i < x.size(); ++i) {
        x[i].assign(kCount, static_cast<float>(i));
        work.push_back(group.send({x[i].data(), kCount, Dtype::f32}, 1, {}));
      }
      Work::all(std::move(work)).wait();
    } else {
      for (size_t i = 0; i < x.size(); ++i) {
        group.recv({x[i].data(), kCount, Dtype::f32}, 0, {}).wait();
        EXPECT_EQ(x[i], std::vector<float>(kCount, static_cast<float>(i)));
      }
    }
  });
}

}  // namespace
}  // namespace cairn::comm
