// The copier of lazy snapshots by itself: order, waits, who copies, and sinks that fail.
#include "train/state/lazy_copier.h"

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/aten.h"

namespace cairn::train {
namespace {

using testing::ElementsAre;

constexpr auto kSoon = std::chrono::minutes(1);

// What came to a sink.
struct ReceivedBlocks {
  std::vector<std::pair<size_t, std::vector<float>>> blocks;
  bool ended = false;
  std::string aborted;
};

class ListSink final : public snapshot::SnapshotSink {
 public:
  ListSink(ReceivedBlocks& received, int64_t fails_at = -1) : received_(received), fails_at_(fails_at) {}
  void begin(int64_t, std::span<const snapshot::WriteBlock>) override {}
  void write(size_t block, std::span<const std::byte> bytes) override {
    if (std::ssize(received_.blocks) == fails_at_) throw Error(Error::Kind::disk, "no more");
    const auto* values = reinterpret_cast<const float*>(bytes.data());
    received_.blocks.emplace_back(block, std::vector<float>(values, values + bytes.size() / sizeof(float)));
  }
  void end() override { received_.ended = true; }
  void abort(const std::string& why) noexcept override { received_.aborted = why; }

 private:
  ReceivedBlocks& received_;
  const int64_t fails_at_;
};

// NumberedTensors of one buffer, 1000 floats each, with the number of each as value.
struct NumberedTensors {
  explicit NumberedTensors(int64_t count) : buffer(at::zeros({count * 1000})) {
    for (int64_t i = 0; i < count; ++i) all.push_back(buffer.narrow(0, i * 1000, 1000).fill_(static_cast<float>(i)));
  }
  at::Tensor buffer;
  std::vector<at::Tensor> all;
};

LazyVersion version_of(const NumberedTensors& tensors, std::vector<std::unique_ptr<snapshot::SnapshotSink>> sinks) {
  LazyVersion version{.step = 1};
  for (const at::Tensor& one : tensors.all) version.blocks.push_back({0, one, {}});
  version.sinks = std::move(sinks);
  return version;
}
std::vector<std::unique_ptr<snapshot::SnapshotSink>> one_sink(ReceivedBlocks& received, int64_t fails_at = -1) {
  std::vector<std::unique_ptr<snapshot::SnapshotSink>> sinks;
  sinks.push_back(std::make_unique<ListSink>(received, fails_at));
  return sinks;
}

struct CopierParts {
  base::MemoryTags memory;
  base::RealClock clock;
  LazyCopier::Parts parts(int64_t ring, std::function<void(size_t)> before_copy = {}) {
    return {.ring_bytes = ring, .memory = memory, .clock = clock, .before_copy = std::move(before_copy)};
  }
};

TEST(LazyCopier, CopiesFirstWhatTheUpdateTouchesFirst) {
  CopierParts with;
  const NumberedTensors tensors(5);
  ReceivedBlocks received;
  LazyCopier copier(with.parts(1 << 20));
  LazyVersion version = version_of(tensors, one_sink(received));
  version.touched = [&](const at::Tensor& tensor) {
    const auto i = static_cast<int64_t>(tensor[0].item<float>());
    return i == 2 ? -1 : 10 - i;  // nothing is known of one
  };
  copier.begin(std::move(version));
  ASSERT_TRUE(copier.wait_done(kSoon));
  std::vector<size_t> order;
  for (const auto& [block, values] : received.blocks) {
    order.push_back(block);
    EXPECT_EQ(values, std::vector<float>(1000, static_cast<float>(block)));
  }
  EXPECT_THAT(order, ElementsAre(4, 3, 1, 0, 2));
  EXPECT_TRUE(received.ended);
  const auto report = copier.take_report();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->bytes, 5 * 4000);
  EXPECT_FALSE(copier.take_report());
}

// The copier is stuck with the first block. Whoever needs another block copies it himself, and waits for nothing else.
TEST(LazyCopier, WhoeverNeedsAQueuedBlockCopiesIt) {
  CopierParts with;
  const NumberedTensors tensors(4);
  ReceivedBlocks received;
  std::atomic<bool> stuck = true;
  LazyCopier copier(with.parts(1 << 20, [&](size_t block) {
    if (block == 0) stuck.wait(true);
  }));
  copier.begin(version_of(tensors, one_sink(received)));
  copier.before_write(tensors.all[2]);
  tensors.all[2].fill_(-1);
  copier.before_write(tensors.buffer.narrow(0, 3500, 10));  // inside the last block
  tensors.all[3].fill_(-1);
  EXPECT_TRUE(copier.copying());
  stuck = false;
  stuck.notify_all();
  copier.before_writing_all();
  tensors.buffer.fill_(-1);
  ASSERT_TRUE(copier.wait_done(kSoon));
  ASSERT_EQ(received.blocks.size(), 4u);
  for (const auto& [block, values] : received.blocks) EXPECT_EQ(values, std::vector<float>(1000, static_cast<float>(block)));
}

TEST(LazyCopier, KnowsWhichTensorsWouldWait) {
  CopierParts with;
  const NumberedTensors tensors(3);
  ReceivedBlocks received;
  std::atomic<bool> stuck = true;
  LazyCopier copier(with.parts(1 << 20, [&](size_t) { stuck.wait(true); }));
  const at::Tensor other = at::zeros({10});
  EXPECT_FALSE(copier.would_wait(tensors.all[1]));
  copier.begin(version_of(tensors, one_sink(received)));
  for (const at::Tensor& one : tensors.all) EXPECT_TRUE(copier.would_wait(one));
  EXPECT_TRUE(copier.would_wait(tensors.buffer));
  EXPECT_FALSE(copier.would_wait(other));
  EXPECT_FALSE(copier.would_wait(tensors.buffer.narrow(0, 0, 0)));
  copier.before_write(other);  // waits for nothing
  stuck = false;
  stuck.notify_all();
  ASSERT_TRUE(copier.wait_done(kSoon));
  EXPECT_FALSE(copier.would_wait(tensors.all[1]));
}

TEST(LazyCopier, ManyVersionsGoThroughASmallRing) {
  CopierParts with;
  const NumberedTensors tensors(40);
  LazyCopier copier(with.parts(9000));
  for (int version = 0; version < 20; ++version) {
    tensors.buffer.add_(version == 0 ? 0 : 1);
    ReceivedBlocks received;
    copier.begin(version_of(tensors, one_sink(received)));
    for (const at::Tensor& one : tensors.all) {
      copier.before_write(one);
      one.add_(1000);
    }
    tensors.buffer.sub_(1000);
    ASSERT_TRUE(copier.wait_done(kSoon));
    ASSERT_EQ(received.blocks.size(), 40u);
    for (const auto& [block, values] : received.blocks)
      ASSERT_EQ(values, std::vector<float>(1000, static_cast<float>(static_cast<int>(block) + version)));
    EXPECT_LE(copier.take_report()->ring_peak, 9000);
  }
  EXPECT_EQ(with.memory.of(base::MemoryUse::snapshot).peak, 9000);
}

// The ring is too small for the version: a sink that fails must not leave training waiting.
TEST(LazyCopier, NobodyWaitsForASinkThatFailed) {
  CopierParts with;
  const NumberedTensors tensors(40);
  ReceivedBlocks received, other;
  {
    LazyCopier copier(with.parts(9000));
    copier.begin(version_of(tensors, one_sink(received, 3)));
    copier.before_writing_all();
    ASSERT_TRUE(copier.wait_done(kSoon));
    EXPECT_EQ(received.blocks.size(), 3u);
    EXPECT_EQ(received.aborted, "no more");
    EXPECT_FALSE(received.ended);
    EXPECT_TRUE(copier.take_report()->failure);
    copier.begin(version_of(tensors, one_sink(other)));  // the next version is whole
  }
  EXPECT_TRUE(other.ended);
  EXPECT_EQ(other.blocks.size(), 40u);
}

TEST(LazyCopier, OneSinkOfTwoMayFail) {
  CopierParts with;
  const NumberedTensors tensors(8);
  ReceivedBlocks failed, whole;
  LazyCopier copier(with.parts(1 << 20));
  std::vector<std::unique_ptr<snapshot::SnapshotSink>> sinks = one_sink(failed, 2);
  sinks.push_back(std::make_unique<ListSink>(whole));
  copier.begin(version_of(tensors, std::move(sinks)));
  ASSERT_TRUE(copier.wait_done(kSoon));
  EXPECT_EQ(failed.aborted, "no more");
  EXPECT_TRUE(whole.ended);
  EXPECT_EQ(whole.blocks.size(), 8u);
}

TEST(LazyCopier, CopiesAsideBeforeASinkEnds) {
  CopierParts with;
  const NumberedTensors tensors(2);
  const at::Tensor beside = at::arange(5, at::kFloat), room = at::zeros({5});
  ReceivedBlocks received;
  LazyCopier copier(with.parts(1 << 20));
  LazyVersion version = version_of(tensors, one_sink(received));
  version.aside.emplace_back(beside, room);
  copier.begin(std::move(version));
  copier.before_write(beside);
  EXPECT_TRUE(at::equal(room, at::arange(5, at::kFloat)));
  ASSERT_TRUE(copier.wait_done(kSoon));
  EXPECT_EQ(received.blocks.size(), 2u);
}

}  // namespace
}  // namespace cairn::train
