// Two ranks of one process that share one mapping of their memory, so that the thread sanitizer sees both sides of every ring, arena and
// board. (In a run each rank maps the memory for itself, where no sanitizer sees that it is the same.)
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "comm/shm/link.h"
#include "comm/shm/segment.h"

namespace cairn::comm {
namespace {

constexpr uint64_t kMessages = 600;

// What one rank needs around its link; nothing is kept early but in the ring, and sleepers are not woken: both sides look again and again.
class Rank final : public LinkOwner {
 public:
  Rank(const SharedSegment& segment, int rank)
      : segment_(segment),
        rank_(rank),
        arena_(segment.arena(rank).data(), static_cast<int64_t>(segment.arena(rank).size())),
        inbox_(rank, done_),
        link_(segment, rank, 1 - rank, 1 - rank, arena_, inbox_, *this) {}

  void sent(const std::shared_ptr<Transfer>& transfer, const Ledger::Message&) override { done_.finish(transfer); }
  bool may_keep(int, int64_t) const override { return false; }
  std::shared_ptr<std::byte[]> early_memory(int, int64_t bytes) override {
    return std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));  // of a view in parts
  }
  void wake(int) override {}
  void distrust(int, const char* why) override { ADD_FAILURE() << why; }

  // Message k to the other, and message k from it.
  void exchange(uint64_t k) {
    const int64_t bytes = length(k);
    Envelope envelope;
    envelope.sequence = k;
    envelope.signature.count = bytes;
    segment_.board(rank_).publish_operation(envelope);
    const bool in_place = k % 3 != 0;
    std::vector<std::byte> own(static_cast<size_t>(bytes)), into(static_cast<size_t>(bytes));
    void* piece = in_place ? arena_.allocate(bytes) : nullptr;
    void* data = in_place ? piece : own.data();
    if (bytes > 0) std::memset(data, value(rank_, k), static_cast<size_t>(bytes));
    const auto out = std::make_shared<Transfer>();
    const auto in = std::make_shared<Receive>();
    in->peer = 1 - rank_;
    in->envelope = envelope;
    in->bytes = bytes;
    in->viewed = k % 2 == 0;
    if (!in->viewed) in->data = into.data();
    inbox_.ask(in);
    link_.send(envelope, Purpose::data, data, bytes, out, {});
    link_.unpark();
    while ((!in->done || !out->done) && !testing::Test::HasFailure()) {
      turn();
      if (in->done && in->held) look(*in, k);
    }
    look(*in, k);
    while (!link_.all_sent() && !testing::Test::HasFailure()) turn();
    if (piece) arena_.free(piece);
  }

  // Until the other needs nothing any more.
  void linger(const std::atomic<int>& busy) {
    while (busy > 0) turn();
  }

 private:
  static int64_t length(uint64_t k) { return k % 50 == 7 ? kSharedPartBytes + 100 : static_cast<int64_t>(k * 397 % 20'011); }
  static int value(int rank, uint64_t k) { return static_cast<int>((k * 31 + static_cast<uint64_t>(rank) * 7) % 251); }

  void turn() {
    if (!link_.progress()) std::this_thread::yield();
    const auto theirs = segment_.board(1 - rank_).read_operation();
    if (!theirs) return;
    EXPECT_EQ(theirs->signature.count, length(theirs->sequence));  // half of one and half of another would not fit
  }

  static void expect(const std::byte* data, int64_t bytes, int value) {
    for (int64_t i = 0; i < bytes; i += std::max<int64_t>(1, bytes / 7)) ASSERT_EQ(static_cast<int>(data[i]), value) << i;
  }
  void look(Receive& in, uint64_t k) {
    ASSERT_FALSE(in.error);
    const auto* data = in.viewed ? in.view : static_cast<const std::byte*>(in.data);
    if (in.viewed && !in.held) return;  // looked at and given back
    expect(data, in.bytes, value(1 - rank_, k));
    in.held.reset();
  }

  const SharedSegment& segment_;
  int rank_;
  CompletionQueue done_;
  Arena arena_;
  Inbox inbox_;
  SharedLink link_;
};

TEST(SharedThreads, MessagesOfAllKindsArriveWithoutARace) {
  const int fd = SharedSegment::create(2);
  const SharedSegment segment(fd, 2);
  ::close(fd);
  std::atomic<int> busy = 2;
  const auto rank_main = [&](int rank) {
    Rank one(segment, rank);
    for (uint64_t k = 0; k < kMessages && !testing::Test::HasFailure(); ++k) one.exchange(k);
    --busy;
    one.linger(busy);
  };
  std::jthread other(rank_main, 1);
  rank_main(0);
}

}  // namespace
}  // namespace cairn::comm
