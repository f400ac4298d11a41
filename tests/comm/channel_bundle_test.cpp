// Channels between two ends in one thread, over wires in memory and virtual time.
#include "comm/net/channel_bundle.h"

#include <cstring>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace cairn::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// One direction of a channel.
struct Wire {
  std::vector<std::byte> bytes = {};
  int64_t per_step = 1 << 20;  // delivered per millisecond
  int64_t left = 0;            // of this step
  bool open = true;
  bool frozen = false;  // takes bytes, delivers none
};

class WireStream final : public ByteStream {
 public:
  WireStream(Wire& out, Wire& in) : out_(out), in_(in) {}
  int64_t read(void* into, int64_t bytes) override {
    if (in_.frozen) return -1;
    if (in_.bytes.empty() && !in_.open) throw Error(Error::Kind::lost_peer, kConnectionClosed);
    const int64_t got = std::min({bytes, static_cast<int64_t>(in_.bytes.size()), in_.left});
    if (got <= 0) return -1;
    std::copy_n(in_.bytes.begin(), got, static_cast<std::byte*>(into));
    in_.bytes.erase(in_.bytes.begin(), in_.bytes.begin() + got);
    in_.left -= got;
    return got;
  }
  int64_t write(std::span<const std::byte> first, std::span<const std::byte> second) override {
    if (!out_.open) throw Error(Error::Kind::lost_peer, kConnectionClosed);
    int64_t room = (200 << 10) - static_cast<int64_t>(out_.bytes.size());
    if (room <= 0) return -1;
    int64_t sent = 0;
    for (const auto& part : {first, second}) {
      const auto take = std::min(room, static_cast<int64_t>(part.size()));
      out_.bytes.insert(out_.bytes.end(), part.begin(), part.begin() + take);
      sent += take;
      room -= take;
    }
    return sent;
  }
  void end_writing() override { out_.open = false; }

 private:
  Wire &out_, &in_;
};

// Takes every frame; remembers what came.
struct Collector final : FrameSink {
  std::optional<PayloadTarget> place(int, const Frame& frame) override {
    if (!room) return std::nullopt;
    return PayloadTarget{nullptr, std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(frame.payload_bytes()) + 1)};
  }
  void on_payload(int, const Frame& frame, PayloadTarget target) override {
    const auto* data = reinterpret_cast<const uint8_t*>(target.owned.get());
    came.emplace_back(frame.envelope.sequence, std::vector<uint8_t>(data, data + frame.payload_bytes()));
    kinds.push_back(frame.kind);
  }
  void written(const std::shared_ptr<Transfer>& transfer, const Ledger::Message&) override {
    if (transfer) transfer->done = true;
  }
  bool room = true;
  std::vector<std::pair<uint64_t, std::vector<uint8_t>>> came;
  std::vector<Frame::Kind> kinds;
};

std::vector<uint8_t> content(uint64_t number, int64_t bytes) {
  std::vector<uint8_t> data(static_cast<size_t>(bytes));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(number * 31 + i * 7 + i / 251);
  return data;
}

struct Ends {
  explicit Ends(int channels, ChannelBundle::Options options = {}) : wires(static_cast<size_t>(channels) * 2) {
    std::vector<std::unique_ptr<ByteStream>> a, b;
    for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
      a.push_back(std::make_unique<WireStream>(wires[2 * c], wires[2 * c + 1]));
      b.push_back(std::make_unique<WireStream>(wires[2 * c + 1], wires[2 * c]));
    }
    left.emplace(1, std::move(a), options, at_left);
    right.emplace(0, std::move(b), options, at_right);
  }
  Wire& to_right(int channel) { return wires[static_cast<size_t>(channel) * 2]; }
  Wire& to_left(int channel) { return wires[static_cast<size_t>(channel) * 2 + 1]; }
  void kill(int channel) {
    for (Wire* one : {&to_right(channel), &to_left(channel)}) {
      one->open = false;
      one->bytes.clear();
    }
  }

  std::shared_ptr<Transfer> send(ChannelBundle& from, int64_t bytes, Frame::Kind kind = Frame::Kind::message) {
    const uint64_t number = ++sent;
    memory.push_back(content(number, bytes));
    Frame frame{.kind = kind, .bytes = bytes};
    frame.envelope.sequence = number;
    auto transfer = std::make_shared<Transfer>();
    from.enqueue(frame, memory.back().data(), nullptr, transfer, {}, now);
    return transfer;
  }

  void step(bool right_reads = true) {
    now += 1ms;
    for (Wire& wire : wires) wire.left = wire.per_step;
    for (int c = 0; c < left->size(); ++c) {
      left->write(c, now);
      if (right_reads) right->write(c, now);
      if (left->is_open(c)) left->read(c, now);
      if (right_reads && right->is_open(c)) right->read(c, now);
    }
    if (now % 100ms != 0ms) return;
    left->check(now);
    if (right_reads) right->check(now);
  }
  template <typename Done>
  bool until(Done done, int steps = 20000) {
    for (int i = 0; i < steps && !done(); ++i) step();
    return done();
  }
  void expect_all_once(const Collector& at, size_t messages) const {
    std::set<uint64_t> numbers;
    for (const auto& [number, bytes] : at.came) {
      EXPECT_TRUE(numbers.insert(number).second) << "message " << number << " twice";
      EXPECT_EQ(bytes, content(number, static_cast<int64_t>(bytes.size())));
    }
    EXPECT_EQ(at.came.size(), messages);
  }

  std::vector<Wire> wires;
  Collector at_left, at_right;
  std::optional<ChannelBundle> left, right;
  std::deque<std::vector<uint8_t>> memory;
  uint64_t sent = 0;
  std::chrono::nanoseconds now = 1s;
};

TEST(ChannelBundle, MessagesOfAnySizeArriveOnceAndWhole) {
  for (const int channels : {1, 2, 3, 4}) {
    Ends ends(channels);
    std::vector<std::shared_ptr<Transfer>> transfers;
    for (const int64_t bytes : {0, 1, 2, 111, 16383, 16384, 16385, 65535, 65536, 65537, 131071, 1000003}) {
      transfers.push_back(ends.send(*ends.left, bytes));
      transfers.push_back(ends.send(*ends.right, bytes));
    }
    EXPECT_TRUE(ends.until([&] { return ends.at_right.came.size() >= 12 && ends.at_left.came.size() >= 12; }));
    for (int i = 0; i < 10; ++i) ends.step();
    ends.expect_all_once(ends.at_right, 12);
    ends.expect_all_once(ends.at_left, 12);
    for (const auto& one : transfers) EXPECT_TRUE(one->done);
    EXPECT_FALSE(ends.left->unanswered());
  }
}

// The channel closes with bytes on the wire in both directions: pieces, and acknowledgements of pieces that have arrived.
TEST(ChannelBundle, AChannelThatClosesAnywhereInAMessageLosesAndRepeatsNothing) {
  for (const int channels : {2, 3}) {
    for (int when = 0; when < 40; when += channels == 2 ? 3 : 5) {
      Ends ends(channels);
      for (Wire& wire : ends.wires) wire.per_step = 60'000 + 7000 * when;
      std::vector<std::shared_ptr<Transfer>> transfers;
      for (int i = 0; i < 3; ++i) {
        transfers.push_back(ends.send(*ends.left, 700'001 + i));
        transfers.push_back(ends.send(*ends.right, 300'007 + i));
        transfers.push_back(ends.send(*ends.left, 100 + i));
      }
      for (int i = 0; i < when / 4; ++i) ends.step();
      ends.kill(when % channels);
      const auto all = [&] { return std::all_of(transfers.begin(), transfers.end(), [](const auto& one) { return one->done; }); };
      EXPECT_TRUE(ends.until(all)) << channels << " channels, lost at " << when;
      for (int i = 0; i < 10; ++i) ends.step();
      ends.expect_all_once(ends.at_right, 6);
      ends.expect_all_once(ends.at_left, 3);
      EXPECT_FALSE(ends.left->is_open(when % channels));
      EXPECT_FALSE(ends.left->states()[static_cast<size_t>(when % channels)].lost_because.empty());
    }
  }
}

TEST(ChannelBundle, AChannelThatStallsIsGivenUpWhileAnotherAnswers) {
  Ends ends(2, {.stall = 3s});
  const auto big = ends.send(*ends.left, 3'000'000);
  ends.step();
  ends.to_right(1).frozen = ends.to_left(1).frozen = true;  // a black hole
  const auto begun = ends.now;
  EXPECT_TRUE(ends.until([&] { return big->done; }));
  EXPECT_GT(ends.now - begun, 3s);
  EXPECT_LT(ends.now - begun, 5s);
  ends.expect_all_once(ends.at_right, 1);
  EXPECT_THAT(ends.left->states()[1].lost_because, HasSubstr("no progress for 3."));
  EXPECT_FALSE(ends.right->is_open(1));                      // it was told
  ends.to_right(1).frozen = ends.to_left(1).frozen = false;  // what is still on its way does no harm
  const auto next = ends.send(*ends.left, 500'000);
  EXPECT_TRUE(ends.until([&] { return next->done; }));
  ends.expect_all_once(ends.at_right, 2);
}

TEST(ChannelBundle, APeerThatComputesLosesNoChannel) {
  Ends ends(3, {.stall = 1s});
  const auto big = ends.send(*ends.left, 5'000'000);
  for (int i = 0; i < 10; ++i) ends.step();
  for (int i = 0; i < 5'000; ++i) ends.step(/*right_reads=*/false);
  for (int c = 0; c < 3; ++c) EXPECT_TRUE(ends.left->is_open(c));
  EXPECT_TRUE(ends.until([&] { return big->done; }));
  ends.expect_all_once(ends.at_right, 1);
}

TEST(ChannelBundle, BytesAreSplitByTheRatesOfTheChannels) {
  Ends ends(3);
  const std::vector<int64_t> rates{60'000, 30'000, 10'000};  // per ms: 60, 30, 10 MB/s
  for (int c = 0; c < 3; ++c) ends.to_right(c).per_step = ends.to_left(c).per_step = rates[static_cast<size_t>(c)];
  auto warm = ends.send(*ends.left, 10'000'000);
  EXPECT_TRUE(ends.until([&] { return warm->done; }));
  const auto before = ends.left->states();
  const auto begun = ends.now;
  const auto big = ends.send(*ends.left, 30'000'000);
  EXPECT_TRUE(ends.until([&] { return big->done; }));
  const double ideal = 30e6 / 100e6, took = std::chrono::duration<double>(ends.now - begun).count();
  EXPECT_LT(took, 1.15 * ideal);
  const auto states = ends.left->states();
  for (size_t c = 0; c < 3; ++c) {
    const double share = static_cast<double>(states[c].bytes - before[c].bytes) / 30e6;
    EXPECT_NEAR(share, static_cast<double>(rates[c]) / 100'000, 0.05);
  }
  ends.to_right(0).per_step = 6'000;  // a tenth from now on
  const auto more = ends.send(*ends.left, 30'000'000);
  const auto then = ends.now;
  EXPECT_TRUE(ends.until([&] { return more->done; }));
  EXPECT_LT(std::chrono::duration<double>(ends.now - then).count(), 1.2 * 30e6 / 46e6);
}

TEST(ChannelBundle, WhatNobodyAskedForWaitsAndHoldsUpNothingElse) {
  Ends ends(2);
  ends.at_right.room = false;
  for (Wire& wire : ends.wires) wire.per_step = 100'000;
  std::vector<std::shared_ptr<Transfer>> transfers;
  for (int i = 0; i < 30; ++i) transfers.push_back(ends.send(*ends.left, 1'000'000));
  for (int i = 0; i < 300; ++i) ends.step();
  EXPECT_TRUE(ends.at_right.came.empty());
  EXPECT_TRUE(ends.left->wants_write());  // it paused long before all was sent
  int64_t sent = 0;
  for (const ChannelState& one : ends.left->states()) sent += one.bytes;
  EXPECT_LT(sent, 20'000'000);
  ends.kill(0);  // what was on it comes on the other one, past what waits
  for (int i = 0; i < 100; ++i) ends.step();
  ends.at_right.room = true;
  ends.right->retry(ends.now);
  EXPECT_TRUE(ends.until([&] { return ends.at_right.came.size() == 30; }));
  ends.expect_all_once(ends.at_right, 30);
}

TEST(ChannelBundle, TheMemoryOfACancelledMessageIsNotReadAgain) {
  for (const int steps : {0, 1, 2, 5}) {
    Ends ends(2);
    for (Wire& wire : ends.wires) wire.per_step = 30'000;
    const auto first = ends.send(*ends.left, 1'000'000), second = ends.send(*ends.left, 1'000'000);
    for (int i = 0; i < steps; ++i) ends.step();
    ends.left->cancel(*first);
    ends.left->cancel(*second);
    for (auto& one : ends.memory) std::vector<uint8_t>().swap(one);  // the address sanitizer watches
    ends.kill(1);
    const auto third = ends.send(*ends.left, 40'000);
    EXPECT_TRUE(ends.until([&] { return third->done && !ends.left->unanswered(); }));
    EXPECT_TRUE(std::any_of(ends.at_right.came.begin(), ends.at_right.came.end(), [](const auto& one) { return one.first == 3; }));
    ends.expect_all_once(ends.at_right, ends.at_right.came.size());
  }
}

TEST(ChannelBundle, AByeComesAfterAllThatWasSentBefore) {
  Ends ends(2);
  ends.to_right(0).per_step = 3'000;
  ends.send(*ends.left, 2'000'000);
  ends.send(*ends.left, 0, Frame::Kind::bye);
  EXPECT_TRUE(ends.until([&] { return ends.at_right.came.size() == 2; }));
  EXPECT_EQ(ends.at_right.kinds.back(), Frame::Kind::bye);
}

TEST(ChannelBundle, ThePeerIsLostWithTheLastChannelAndMayStillHaveSaidWhy) {
  Ends ends(2);
  ends.send(*ends.left, 5'000'000);
  ends.send(*ends.left, 10, Frame::Kind::failing);
  ends.to_right(0).per_step = ends.to_right(1).per_step = 1000;
  ends.step();
  ends.kill(0);
  ends.step();
  ends.kill(1);
  EXPECT_THROW(
      {
        for (int i = 0; i < 10; ++i) ends.step();
      },
      Error);
}

// --- hostile records ---------------------------------------------------------------------------------------------------------------------

template <typename... Parts>
void put(Wire& wire, const Parts&... parts) {
  (wire.bytes.insert(wire.bytes.end(), parts.begin(), parts.end()), ...);
}

Frame frame_of(int64_t bytes) { return {.kind = Frame::Kind::message, .bytes = bytes}; }

std::string refusal_of(const std::function<void(Wire&)>& say, int64_t message_bytes_max = 1 << 20) {
  Ends ends(2, {.message_bytes_max = message_bytes_max});
  say(ends.to_right(0));
  ends.to_right(0).left = 1 << 20;
  try {
    ends.right->read(0, ends.now);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    return error.what();
  }
  return "accepted";
}

TEST(ChannelRecord, EveryLieIsRefusedWithItsName) {
  using Kind = ChannelRecord::Kind;
  const std::vector<std::byte> ten(10);
  const auto piece = [&](uint64_t number, int64_t offset, int64_t bytes, int64_t whole) {
    return refusal_of([=](Wire& wire) {
      put(wire, encode(ChannelRecord{Kind::piece, number, offset, bytes}), encode(frame_of(whole)), ten);
    });
  };
  EXPECT_EQ(piece(1, 0, 10, 10), "accepted");
  EXPECT_THAT(piece(1, 0, 10, 9), HasSubstr("a piece of 10 bytes at 0 of a frame of 9"));
  EXPECT_THAT(piece(1, 5, 10, 14), HasSubstr("a piece of 10 bytes at 5 of a frame of 14"));
  EXPECT_THAT(piece(1, 1 << 19, 10, 14), HasSubstr("of a frame of 14"));
  EXPECT_THAT(piece(1, 0, 0, 14), HasSubstr("a piece of 0 bytes"));
  EXPECT_THAT(piece(0, 0, 10, 10), HasSubstr("frame 0 after frame 0"));
  EXPECT_THAT(piece(uint64_t{1} << 40, 0, 10, 10), HasSubstr("after frame 0"));
  EXPECT_THAT(piece(1, -1, 10, 10), HasSubstr("offset -1"));
  EXPECT_THAT(piece(1, 0, -1, 10), HasSubstr("-1 bytes"));
  EXPECT_THAT(piece(1, 0, 2 << 20, 2 << 20), HasSubstr("at most 1048576 are allowed"));
  EXPECT_THAT(piece(1, 0, 10, 2 << 20), HasSubstr("sent a bad frame"));
  const auto record = [&](const ChannelRecord& one) { return refusal_of([=](Wire& wire) { put(wire, encode(one)); }); };
  EXPECT_THAT(record({.kind = Kind::ack, .number = 1}), HasSubstr("acknowledged 1 pieces of 0"));
  EXPECT_THAT(record({.kind = Kind::lost, .number = 2}), HasSubstr("channel 2 of 2"));
  EXPECT_THAT(record({.kind = static_cast<Kind>(5)}), HasSubstr("kind 5"));
  EXPECT_EQ(record({.kind = Kind::probe}), "accepted");
  EXPECT_THAT(refusal_of([](Wire& wire) { put(wire, std::vector<std::byte>(32)); }), HasSubstr("it begins with"));
  EXPECT_THAT(refusal_of([&](Wire& wire) {
                put(wire, encode(ChannelRecord{Kind::piece, 1, 0, 10}), encode(frame_of(30)), ten);
                put(wire, encode(ChannelRecord{Kind::piece, 1, 5, 10}), encode(frame_of(30)), ten);
              }),
              HasSubstr("pieces of frame 1 overlap"));
  EXPECT_THAT(refusal_of([&](Wire& wire) {
                put(wire, encode(ChannelRecord{Kind::piece, 1, 0, 10}), encode(frame_of(30)), ten);
                put(wire, encode(ChannelRecord{Kind::piece, 1, 10, 10}), encode(frame_of(31)), ten);
              }),
              HasSubstr("another header for frame 1"));
}

// Records with bits turned: accepted or refused, never anything else (the sanitizers watch).
TEST(ChannelRecord, DamagedStreamsDoNoHarm) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const base::Random random(seed);
    Ends ends(2, {.message_bytes_max = 1 << 20});
    for (int i = 0; i < 4; ++i) ends.send(*ends.left, 3000 * i + 1);
    for (int c = 0; c < 2; ++c) ends.left->write(c, ends.now);
    for (int c = 0; c < 2; ++c) {
      Wire& wire = ends.to_right(c);
      for (uint64_t i = 0; i < 6 && !wire.bytes.empty(); ++i) {
        const uint64_t at = random.for_index(static_cast<uint64_t>(c)).below(i, std::min<uint64_t>(wire.bytes.size(), 200));
        wire.bytes[at] ^= static_cast<std::byte>(1U << random.below(100 + i, 8));
      }
      wire.left = 1 << 20;
    }
    try {
      for (int c = 0; c < 2; ++c)
        if (ends.right->is_open(c)) ends.right->read(c, ends.now);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    }
  }
}

}  // namespace
}  // namespace cairn::comm
