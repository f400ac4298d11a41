#include <cstring>
#include <deque>
#include <memory>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/checksum.h"
#include "comm/mailbox.h"
#include "comm/mailbox/frame.h"
#include "comm/mailbox/transfer.h"
#include "harness/ranks.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;
using harness::Faults;
using harness::On;
using harness::on_ranks;
using Bytes = std::vector<std::byte>;

Bytes pattern(int64_t bytes, uint32_t seed = 1) {
  Bytes made(static_cast<size_t>(bytes));
  for (std::byte& one : made) one = std::byte((seed = seed * 1664525 + 1013904223) >> 24);
  return made;
}

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

constexpr int64_t kChunk = 1000;
const MailboxOptions kSmallChunks{.within = 10s, .chunk_bytes = kChunk, .chunks_in_flight = 3};

class TransferOn : public testing::TestWithParam<On> {};
INSTANTIATE_TEST_SUITE_P(Transports, TransferOn, testing::Values(On::local, On::net, On::machines),
                         [](const auto& one) { return harness::name(one.param); });

TEST_P(TransferOn, FetchesEverySizeAndMovesEachByteOnce) {
  const harness::Run run = on_ranks(2, {.on = GetParam()}, [](World& world) {
    Mailbox mailbox(world, kSmallChunks);
    Node me = mailbox.open(world.rank() == 0 ? "server" : "worker");
    for (const int64_t bytes : {0, 1, 999, 1000, 1001, 7919}) {
      const std::string id = fmt::format("model-{}", bytes);
      if (world.rank() == 0) {
        me.offer(id, std::make_shared<const Bytes>(pattern(bytes)));
        continue;
      }
      me.send("server", "ready", "").wait();
      const auto into = std::make_shared<IncomingTransfer>(id, 10000);
      me.fetch("server", into).wait();
      EXPECT_TRUE(into->complete());
      EXPECT_EQ(into->take(), pattern(bytes));
    }
    if (world.rank() == 1) me.send("server", "done", "").wait();
    if (world.rank() == 0) me.receive({.tag = "done"}).wait();
  });
  EXPECT_EQ(run.ledger.bytes_sent(0, Purpose::state), 0 + 1 + 999 + 1000 + 1001 + 7919);
}

TEST(Transfer, GoesOnFromAnotherNodeWhereItsSourceWasLost) {
  static constexpr int64_t kBytes = 100 * kChunk + 37;
  int64_t kept = 0;
  harness::Options options;
  options.link.latency = 1ms;
  const auto faults = Faults().lose({.rank = 0, .at = 40ms});
  const harness::Run run = on_ranks(3, options, faults, [&kept](World& world) {
    Mailbox mailbox(world, kSmallChunks);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() < 2) {
      me.offer("model", std::make_shared<const Bytes>(pattern(kBytes)));
      me.receive({.tag = "done"}).wait();
      return;
    }
    const auto into = std::make_shared<IncomingTransfer>("model", kBytes);
    const std::string failure = failure_of([&] { me.fetch("n0", into).wait(); });
    kept = into->received();
    EXPECT_GT(kept, 0);
    EXPECT_LT(kept, kBytes);
    EXPECT_NE(failure.find("node n0 was lost with rank 0"), std::string::npos) << failure;
    EXPECT_NE(failure.find(fmt::format("{} of {} bytes have come and are kept for the next attempt", kept, kBytes)), std::string::npos)
        << failure;
    me.fetch("n1", into).wait();
    EXPECT_EQ(into->bytes(), pattern(kBytes));
    me.send("n1", "done", "").wait();
  });
  EXPECT_EQ(run.faults_fired, 1);
  EXPECT_TRUE(run.errors.empty());
  EXPECT_EQ(run.ledger.bytes_sent(1, Purpose::state), kBytes - kept);
}

TEST(Transfer, GoesOnInTheNextEpochAndInTheNextRun) {
  static constexpr int64_t kBytes = 50 * kChunk + 1;
  harness::Options options;
  options.link.latency = 1ms;
  on_ranks(2, options, [](World& world) {
    Mailbox mailbox(world, kSmallChunks);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 0) {
      me.offer("model", std::make_shared<const Bytes>(pattern(kBytes)));
      me.receive({.tag = "next", .within = 100s}).wait();
      mailbox.enter(1);
      me.receive({.tag = "done"}).wait();
      return;
    }
    const auto into = std::make_shared<IncomingTransfer>("model", kBytes);
    const Request fetching = me.fetch("n0", into);
    mailbox.timer(20ms).wait();
    me.send("n0", "next", "").wait();
    mailbox.enter(1);
    EXPECT_NE(failure_of([&] { fetching.wait(); }).find("epoch 0 is over, epoch 1 has begun"), std::string::npos);
    const int64_t kept = into->received();
    EXPECT_GT(kept, 0);
    EXPECT_LT(kept, kBytes);
    me.fetch("n0", into).wait();
    EXPECT_EQ(into->bytes(), pattern(kBytes));

    const Bytes whole = pattern(kBytes);
    for (const int64_t begun : {int64_t{17}, kBytes}) {  // as a process that kept this much and was started again
      const auto again = std::make_shared<IncomingTransfer>("model", kBytes, Bytes(whole.begin(), whole.begin() + begun));
      me.fetch("n0", again).wait();
      EXPECT_EQ(again->bytes(), whole);
    }
    me.send("n0", "done", "").wait();
  });
}

TEST(Transfer, SaysWhyAnOfferWillNotDo) {
  on_ranks(2, [](World& world) {
    Mailbox mailbox(world, kSmallChunks);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 0) {
      me.offer("model", std::make_shared<const Bytes>(pattern(5000)));
      me.receive({.tag = "done"}).wait();
      return;
    }
    const auto failure = [&](std::shared_ptr<IncomingTransfer> into) {
      return failure_of([&] { me.fetch("n0", std::move(into)).wait(); });
    };
    EXPECT_NE(failure(std::make_shared<IncomingTransfer>("models", 5000)).find("node n0 does not offer models"), std::string::npos);
    EXPECT_NE(failure(std::make_shared<IncomingTransfer>("model", 4999))
                  .find("node n0 offers transfer model with 5000 bytes: at most 4999 are allowed here"),
              std::string::npos);
    EXPECT_NE(failure(std::make_shared<IncomingTransfer>("model", 9000, pattern(5001))).find("which has 5000"), std::string::npos);

    const auto wrong = std::make_shared<IncomingTransfer>("model", 5000, pattern(1500, /*seed=*/2));
    EXPECT_NE(failure(wrong).find("was announced; it starts again from zero"), std::string::npos);
    EXPECT_EQ(wrong->received(), 0);
    me.fetch("n0", wrong).wait();
    EXPECT_EQ(wrong->bytes(), pattern(5000));

    const auto late = std::make_shared<IncomingTransfer>("model", 5000);
    const Request never = me.fetch("nobody", late, 2s);
    EXPECT_NE(failure_of([&] { never.wait(); }).find("no node nobody has announced itself"), std::string::npos);
    me.send("n0", "done", "").wait();
  });
}

TEST(Transfer, RefusesAnotherObjectUnderTheSameId) {
  const Bytes ours = pattern(10), theirs = pattern(10, 2);
  IncomingTransfer into("x", 100);
  EXPECT_TRUE(into.add("a", 0, std::span(ours).first(4), 10, base::checksum(ours)));
  EXPECT_FALSE(into.add("a", 8, std::span(ours).subspan(8), 10, base::checksum(ours)));  // not next
  EXPECT_FALSE(into.add("a", 4, ours, 10, base::checksum(ours)));                        // too long
  const std::string failure = failure_of([&] { into.add("b", 4, std::span(theirs).subspan(4), 10, base::checksum(theirs)); });
  EXPECT_NE(failure.find("node b offers transfer x with 10 bytes"), std::string::npos) << failure;
  EXPECT_NE(failure.find("not the object of which 4 bytes have come"), std::string::npos) << failure;
  EXPECT_TRUE(into.add("c", 4, std::span(ours).subspan(4), 10, base::checksum(ours)));
  EXPECT_EQ(into.take(), ours);
}

TEST(MailboxFrameFormat, RefusesWhatAHeaderMayNotSay) {
  const MailboxFrame frame{.kind = MailboxFrame::Kind::message, .epoch = 3, .from = "a", .to = "bc", .tag = "def", .body = pattern(10)};
  const auto good = encode_header(frame);
  const MailboxFrameHeader header = decode_header(good, 10);
  EXPECT_EQ(header.names_bytes(), 6);
  EXPECT_EQ(assemble(header, "abcdef", pattern(10)).tag, "def");
  EXPECT_FALSE(assemble(header, "abcdef", pattern(10)).damaged);
  EXPECT_TRUE(assemble(header, "abcdef", pattern(10, 2)).damaged);
  EXPECT_NE(failure_of([&] { assemble(header, "abc\033ef", pattern(10)); }).find("control characters"), std::string::npos);

  struct Bad {
    size_t at;
    uint8_t value;
    const char* says;
  };
  for (const Bad& bad :
       {Bad{0, 0, "it begins with"}, Bad{4, 9, "version 9, this is version 1"}, Bad{5, 6, "kind 6"}, Bad{6, 9, "purpose 9"},
        Bad{8, 65, "a name of 65 bytes, at most 64"}, Bad{8, 0, "no sender"}, Bad{11, 1, "a name of 258 bytes"},
        Bad{64, 11, "a body of 11 bytes, at most 10"}, Bad{71, 0x80, "a body of -"}, Bad{39, 0x80, "offset -"}, Bad{47, 0x80, "of -9"}}) {
    auto bytes = good;
    bytes[bad.at] = std::byte(bad.value);
    const std::string failure = failure_of([&] { decode_header(bytes, 10); });
    EXPECT_NE(failure.find(bad.says), std::string::npos) << failure;
  }
}

// A rank that breaks the protocol: frames made by hand.
class Forger {
 public:
  explicit Forger(World& world) : transport_(world.transport()) {
    uint64_t hash = 0xcbf29ce484222325;  // the mailbox without a name
    for (const char c : std::string_view("mailbox ")) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    group_ = hash | 1;
  }
  void send(const MailboxFrame& frame, size_t damaged_byte = kMailboxHeaderBytes) {
    parts_.push_back(frame.body);
    const std::string names = names_of(frame);
    parts_.emplace_front(names.size());
    std::memcpy(parts_.front().data(), names.data(), names.size());
    const auto header = encode_header(frame);
    Bytes& first = parts_.emplace_front(header.begin(), header.end());
    if (damaged_byte < header.size()) first[damaged_byte] ^= std::byte{1};
    put(0, parts_[0]);
    put(1, parts_[1]);
    if (!frame.body.empty()) put(2, parts_.back());
    ++sequence_;
  }

 private:
  void put(uint32_t step, const Bytes& bytes) {
    Envelope envelope;
    envelope.group = group_;
    envelope.sequence = sequence_;
    envelope.step = step;
    envelope.signature = {.kind = OperationKind::send_recv, .count = static_cast<int64_t>(bytes.size())};
    sent_.push_back(transport_.send(0, envelope, Purpose::control, bytes.data(), static_cast<int64_t>(bytes.size())));
  }
  Transport& transport_;
  uint64_t group_ = 0, sequence_ = 0;
  std::deque<Bytes> parts_;  // kept while they are sent
  std::vector<Completion> sent_;
};

TEST(MailboxFrameFormat, GivesUpARankThatSendsABadHeaderAndNobodyElse) {
  on_ranks(3, [](World& world) {
    if (world.rank() == 1) {
      Forger forger(world);
      forger.send({.kind = MailboxFrame::Kind::join, .from = "n1"});
      forger.send({.from = "n1", .to = "n0", .tag = "t"}, /*damaged_byte=*/68);  // a body of 4 GiB
      world.timer(1s).wait();
      return;
    }
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 2) return me.send("n0", "fine", "").wait();
    const std::string failure = failure_of([&] { me.receive({.from = "n1"}).wait(); });
    EXPECT_NE(failure.find("node n1 was lost with rank 1: it sent a bad mailbox header: a body of 4294967296 bytes, at most 67108864"),
              std::string::npos)
        << failure;
    EXPECT_EQ(me.receive().message().tag, "fine");
  });
}

TEST(MailboxFrameFormat, BelievesNobodyWhoSpeaksForAnotherRanksNode) {
  on_ranks(3, [](World& world) {
    if (world.rank() == 1) {
      Forger forger(world);
      forger.send({.from = "n2", .to = "n0", .tag = "t"});
      forger.send({.kind = MailboxFrame::Kind::leave, .from = "n2"});
      world.timer(2s).wait();
      return;
    }
    Mailbox mailbox(world);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    mailbox.timer(1s).wait();
    if (world.rank() == 2) return me.send("n0", "true", "").wait();
    EXPECT_EQ(me.receive({.from = "n2"}).message().tag, "true");
    EXPECT_EQ(mailbox.counts().no_node, 2);
  });
}

TEST(Transfer, AsksAgainForDamagedPiecesButNotForEver) {
  on_ranks(2, [](World& world) {
    const Bytes whole = pattern(1500);
    if (world.rank() == 1) {
      Forger forger(world);
      forger.send({.kind = MailboxFrame::Kind::join, .from = "n1"});
      MailboxFrame chunk{.kind = MailboxFrame::Kind::chunk, .from = "n1", .to = "n0", .tag = "model", .total = 1500};
      chunk.whole_checksum = base::checksum(whole);
      chunk.body.assign(whole.begin(), whole.begin() + 1000);
      world.timer(1s).wait();
      for (chunk.number = 1; chunk.number <= 4; ++chunk.number) forger.send(chunk, /*damaged_byte=*/56);  // its checksum
      world.timer(3s).wait();
      return;
    }
    Mailbox mailbox(world, kSmallChunks);
    Node me = mailbox.open("n0");
    const auto into = std::make_shared<IncomingTransfer>("model", 1500);
    const std::string failure = failure_of([&] { me.fetch("n1", into).wait(); });
    EXPECT_NE(failure.find("node n1 sent 4 pieces damaged or out of order (0 of an unknown number of bytes have come"), std::string::npos)
        << failure;
    EXPECT_EQ(mailbox.counts().damaged, 4);
    EXPECT_EQ(into->received(), 0);
  });
}

TEST(Transfer, GoesOnWherePiecesAreShorterThanAskedFor) {
  on_ranks(2, [](World& world) {
    MailboxOptions options = kSmallChunks;
    if (world.rank() == 0) options.chunk_bytes = options.body_bytes_max = 400;
    Mailbox mailbox(world, options);
    Node me = mailbox.open(fmt::format("n{}", world.rank()));
    if (world.rank() == 0) {
      me.offer("model", std::make_shared<const Bytes>(pattern(7919)));
      return me.receive({.tag = "done"}).wait();
    }
    const auto into = std::make_shared<IncomingTransfer>("model", 7919);
    me.fetch("n0", into).wait();
    EXPECT_EQ(into->bytes(), pattern(7919));
    me.send("n0", "done", "").wait();
  });
}

}  // namespace
}  // namespace cairn::comm
