// Hostile bytes against the readers of frames and mailbox headers: they accept exactly what the plain rules in this file accept, and
// accepted input encodes to the same bytes; everything else is a cairn::Error. No input makes a reader expect more bytes than are allowed.
// The long form: test_comm --gtest_also_run_disabled_tests --gtest_filter='*Fuzz.DISABLED_*', built with the address sanitizer.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "comm/fuzz.h"
#include "comm/mailbox/frame.h"
#include "comm/net/frame.h"
#include "comm/net/peer.h"

namespace cairn::comm {
namespace {

using fuzz::Bytes;
using fuzz::Field;
using fuzz::load;
using fuzz::Random;
using fuzz::Stream;

constexpr int64_t kMost = 20'000;  // bytes of a message; more than what is read straight to its place

// The header's fields as bytes on the connection, in order: see net/frame.cpp.
constexpr Field kFrameFields[] = {{0, 4},  {4, 2},  {6, 1},  {7, 1},  {8, 8},  {16, 8}, {24, 4}, {28, 1}, {29, 1},
                                  {30, 1}, {31, 1}, {32, 4}, {36, 4}, {40, 8}, {48, 8}, {56, 8}, {64, 8}, {72, 8}};
constexpr size_t kKindOffset = 6, kWhat = 72;

bool allowed(const std::byte* h) {
  const int64_t bytes = load<int64_t>(h + 48);
  return load<uint32_t>(h) == 0x6e726963 && load<uint16_t>(h + 4) == 1 && load<uint8_t>(h + kKindOffset) <= 5 && load<uint8_t>(h + 7) < 9 &&
         load<uint8_t>(h + 28) <= 11 && load<uint8_t>(h + 29) <= 6 && load<uint8_t>(h + 30) <= 2 && bytes >= 0 &&
         bytes <= (load<uint8_t>(h + kKindOffset) == 3 ? 1024 : kMost) && load<int64_t>(h + 56) >= 0;
}

int64_t payload_of(const std::byte* h) {
  const auto kind = load<uint8_t>(h + kKindOffset);
  return kind == 1 || kind == 4 || kind == 5 ? 0 : load<int64_t>(h + 48);
}

// The header as it is kept: its text has an end, and no control characters.
std::array<std::byte, kFrameBytes> kept(const std::byte* h) {
  std::array<std::byte, kFrameBytes> header;
  std::copy(h, h + kFrameBytes, header.begin());
  header.back() = std::byte{0};
  for (size_t i = kWhat; i < header.size(); ++i) {
    const auto c = static_cast<unsigned char>(header[i]);
    if (c != 0 && (c < 32 || c == 127)) header[i] = std::byte{'?'};
  }
  return header;
}

Frame some_frame(Random& random) {
  Frame frame{.kind = static_cast<Frame::Kind>(random.below(6)), .purpose = static_cast<Purpose>(random.below(kPurposes))};
  Envelope& e = frame.envelope;
  e.group = random.bits();
  e.sequence = random.below(1000);
  e.step = static_cast<uint32_t>(random.below(9));
  e.signature = {.kind = static_cast<OperationKind>(random.below(static_cast<uint64_t>(kLastOperation) + 1)),
                 .dtype = static_cast<Dtype>(random.below(7)),
                 .reduce = static_cast<Reduce>(random.below(3)),
                 .root = static_cast<int32_t>(random.below(9)) - 1,
                 .count = static_cast<int64_t>(random.below(1 << 20)),
                 .label = static_cast<uint32_t>(random.bits()),
                 .codec = static_cast<uint8_t>(random.below(8))};
  std::memcpy(e.what, "layers.7.mlp", 12);
  frame.bytes = static_cast<int64_t>(random.one_in(16) ? random.below(kMost + 1) : random.below(300));
  if (frame.kind == Frame::Kind::failing) frame.bytes = std::min<int64_t>(frame.bytes, 1024);
  frame.number = random.below(5);
  frame.offset = static_cast<int64_t>(random.below(1 << 30));
  return frame;
}

void add_frame(Random& random, Stream& stream) {
  const Frame frame = some_frame(random);
  stream.headers.push_back(stream.bytes.size());
  fuzz::append(stream.bytes, encode(frame));
  fuzz::append(stream.bytes, fuzz::random_bytes(random, static_cast<uint64_t>(frame.payload_bytes())));
}

// Counts accepted and refused inputs: a test requires many of both.
struct Seen {
  int64_t accepted = 0, refused = 0;
};

void decode_one(uint64_t seed, Seen& seen) {
  Random random(seed);
  Stream stream;
  stream.headers.push_back(0);
  fuzz::append(stream.bytes, encode(some_frame(random)));
  for (uint64_t i = random.below(4); i > 0; --i) {
    fuzz::mutate(random, stream, kFrameBytes, kFrameFields, random.one_in(2) ? kMost : 1024);
    stream.bytes.resize(static_cast<size_t>(kFrameBytes));
  }
  const std::span<const std::byte, kFrameBytes> header(stream.bytes.data(), static_cast<size_t>(kFrameBytes));
  try {
    const Frame frame = decode(header, kMost);
    ++seen.accepted;
    EXPECT_TRUE(allowed(header.data()));
    EXPECT_EQ(encode(frame), kept(header.data()));
    EXPECT_LE(frame.payload_bytes(), kMost);
    const std::string shown = describe(frame.envelope.signature, frame.envelope.what);
    EXPECT_TRUE(std::all_of(shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) >= 32 && c != 127; })) << shown;
  } catch (const Error& error) {
    ++seen.refused;
    EXPECT_FALSE(allowed(header.data())) << error.what();
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    EXPECT_EQ(error.sentence().rfind("sent a bad frame: ", 0), 0u);
  }
}

// Notes each frame that a peer brings; memory is exactly as long as the payload, so that a byte too many is seen by the sanitizer.
class Notes final : public FrameSink {
 public:
  explicit Notes(Random& random) : random_(random) {}

  std::optional<PayloadTarget> place(int, const Frame& frame) override {
    EXPECT_LE(frame.payload_bytes(), frame.kind == Frame::Kind::failing ? kReasonBytesMax : kMost);
    EXPECT_GE(frame.payload_bytes(), 0);
    if (random_.one_in(8)) return std::nullopt;
    const auto bytes = static_cast<size_t>(frame.payload_bytes());
    PayloadTarget target;
    how_ = random_.below(3);
    if (how_ == 0) target.owned = std::make_shared_for_overwrite<std::byte[]>(bytes);
    if (how_ == 1) {
      memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      const auto transfer = std::make_shared<NetTransfer>();
      transfer->data = memory_.get();
      transfer->bytes = frame.payload_bytes();
      target.transfer = transfer;
    }
    return target;
  }

  void on_payload(int, const Frame& frame, PayloadTarget target) override {
    const std::byte* data = how_ == 0 ? target.owned.get() : how_ == 1 ? memory_.get() : nullptr;
    const auto bytes = static_cast<size_t>(frame.payload_bytes());
    frames.emplace_back(encode(frame), data ? std::optional(Bytes(data, data + bytes)) : std::nullopt);
  }

  void written(const std::shared_ptr<Transfer>&, const Ledger::Message&) override { ADD_FAILURE() << "nothing was to be written"; }

  std::vector<std::pair<std::array<std::byte, kFrameBytes>, std::optional<Bytes>>> frames;  // no bytes where they were dropped

 private:
  Random& random_;
  uint64_t how_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

// Whether the reader of this stream meets a bad header, having told the sink of exactly the frames before it.
bool check_against_plain_reader(const Bytes& stream, const Notes& notes) {
  size_t at = 0, count = 0;
  while (stream.size() - at >= static_cast<size_t>(kFrameBytes)) {
    const std::byte* header = stream.data() + at;
    if (!allowed(header)) {
      EXPECT_EQ(notes.frames.size(), count);
      return true;
    }
    const auto payload = static_cast<size_t>(payload_of(header));
    if (stream.size() - at - kFrameBytes < payload) break;
    EXPECT_LT(count, notes.frames.size());
    if (count >= notes.frames.size()) return false;
    EXPECT_EQ(notes.frames[count].first, kept(header));
    const Bytes bytes(header + kFrameBytes, header + kFrameBytes + payload);
    EXPECT_EQ(notes.frames[count].second.value_or(bytes), bytes);
    at += kFrameBytes + payload;
    ++count;
  }
  EXPECT_EQ(notes.frames.size(), count);
  return false;
}

// Writes the stream in pieces of any length, and lets the peer read after each. Returns what it said in the end.
std::string feed(Random& random, const Bytes& stream, int from, NetPeer& peer, Notes& notes) {
  try {
    for (size_t at = 0; at < stream.size();) {
      const size_t piece = std::min<size_t>(stream.size() - at, 1 + random.below(random.one_in(2) ? 150 : 30'000));
      const ssize_t sent = ::send(from, stream.data() + at, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) at += static_cast<size_t>(sent);
      peer.read(notes);
    }
    ::shutdown(from, SHUT_WR);
    while (true) {
      peer.read(notes);
      EXPECT_TRUE(peer.parked());  // else there was an end to be seen
      if (testing::Test::HasFailure()) return "";
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    return error.sentence();
  }
}

void read_one(uint64_t seed, Seen& seen) {
  Random random(seed);
  Stream stream;
  for (uint64_t i = 1 + random.below(5); i > 0; --i) add_frame(random, stream);
  for (uint64_t i = random.below(4); i > 0; --i) fuzz::mutate(random, stream, kFrameBytes, kFrameFields, kMost);
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  {
    NetPeer peer(1, make_plain_stream(pair[0]), kMost);
    Notes notes(random);
    const std::string end = feed(random, stream.bytes, pair[1], peer, notes);
    const bool bad = check_against_plain_reader(stream.bytes, notes);
    EXPECT_EQ(end.rfind(bad ? "sent a bad frame: " : "its connection was closed", 0), 0u) << end;
    ++(bad ? seen.refused : seen.accepted);
  }
  ::close(pair[0]);
  ::close(pair[1]);
}

// A mailbox header's fields: see mailbox/frame.cpp.
constexpr Field kParcelFields[] = {{0, 4},  {4, 1},  {5, 1},  {6, 1},  {7, 1},  {8, 2},  {10, 2}, {12, 2},
                                   {14, 2}, {16, 8}, {24, 8}, {32, 8}, {40, 8}, {48, 8}, {56, 8}, {64, 8}};
constexpr int64_t kBodyMost = 500;
constexpr size_t kChecksum = 56;

bool parcel_allowed(const std::byte* h) {
  const auto body = load<int64_t>(h + 64);
  return load<uint32_t>(h) == 0x6c69616d && load<uint8_t>(h + 4) == 1 && load<uint8_t>(h + 5) <= 5 && load<uint8_t>(h + 6) < 9 &&
         load<uint8_t>(h + 7) == 0 && load<uint16_t>(h + 8) >= 1 && load<uint16_t>(h + 8) <= 64 && load<uint16_t>(h + 10) <= 64 &&
         load<uint16_t>(h + 12) <= 64 && load<uint16_t>(h + 14) == 0 && load<int64_t>(h + 32) >= 0 && load<int64_t>(h + 40) >= 0 &&
         body >= 0 && body <= kBodyMost;
}

MailboxFrame some_parcel(Random& random) {
  const auto some_name = [&random](uint64_t least) {
    return std::string(least + random.below(65 - least), static_cast<char>('a' + random.below(26)));
  };
  return {.kind = static_cast<MailboxFrame::Kind>(random.below(6)),
          .purpose = static_cast<Purpose>(random.below(kPurposes)),
          .epoch = random.below(3),
          .from = some_name(1),
          .to = some_name(0),
          .tag = some_name(0),
          .number = random.bits(),
          .offset = static_cast<int64_t>(random.bits() >> 1),
          .total = static_cast<int64_t>(random.bits() >> 1),
          .whole_checksum = random.bits(),
          .body = fuzz::random_bytes(random, random.below(kBodyMost + 1))};
}

// The frame must encode to the bytes it came from, except for the checksum of a damaged body.
void check_mailbox_frame(const MailboxFrame& frame, const Bytes& sent) {
  const std::string names = names_of(frame);
  Bytes again;
  fuzz::append(again, encode_header(frame));
  fuzz::append(again, std::as_bytes(std::span(names)));
  fuzz::append(again, frame.content());
  ASSERT_LE(again.size(), sent.size());
  Bytes expected(sent.begin(), sent.begin() + static_cast<ptrdiff_t>(again.size()));
  const uint64_t sum = base::checksum(frame.body);
  EXPECT_EQ(frame.damaged, load<uint64_t>(sent.data() + kChecksum) != sum);
  std::memcpy(expected.data() + kChecksum, &sum, sizeof sum);
  EXPECT_EQ(again, expected);
}

// Reads as a mailbox's channel does: the header, then as many bytes as it says.
void parcel_one(uint64_t seed, Seen& seen) {
  Random random(seed);
  const MailboxFrame sent = some_parcel(random);
  Stream stream;
  stream.headers.push_back(0);
  const std::string sent_names = names_of(sent);
  fuzz::append(stream.bytes, encode_header(sent));
  fuzz::append(stream.bytes, std::as_bytes(std::span(sent_names)));
  fuzz::append(stream.bytes, sent.body);
  for (uint64_t i = random.below(4); i > 0; --i)
    fuzz::mutate(random, stream, kMailboxHeaderBytes, kParcelFields, random.one_in(2) ? kBodyMost : 64);
  const Bytes& bytes = stream.bytes;
  if (bytes.size() < static_cast<size_t>(kMailboxHeaderBytes)) return;
  try {
    const std::span<const std::byte, kMailboxHeaderBytes> first(bytes.data(), static_cast<size_t>(kMailboxHeaderBytes));
    const MailboxFrameHeader header = decode_header(first, kBodyMost);
    EXPECT_TRUE(parcel_allowed(bytes.data()));
    EXPECT_TRUE(header.names_bytes() >= 1 && header.names_bytes() <= 3 * kNameBytesMax && header.body_bytes >= 0 &&
                header.body_bytes <= kBodyMost);
    const auto names_end = static_cast<size_t>(kMailboxHeaderBytes + header.names_bytes()),
               end = names_end + static_cast<size_t>(header.body_bytes);
    if (bytes.size() < end) return;  // the transport would go on waiting
    const std::string names(reinterpret_cast<const char*>(bytes.data()) + kMailboxHeaderBytes, static_cast<size_t>(header.names_bytes()));
    const bool printable = std::all_of(names.begin(), names.end(), [](char c) { return static_cast<unsigned char>(c) >= 32 && c != 127; });
    const Bytes body(bytes.data() + names_end, bytes.data() + end);
    std::optional<MailboxFrame> frame;
    EXPECT_EQ(printable, [&] {
      try {
        frame = assemble(header, names, body);
      } catch (const Error&) {
      }
      return frame.has_value();
    }());
    if (frame) check_mailbox_frame(*frame, bytes);
    ++seen.accepted;
  } catch (const Error& error) {
    ++seen.refused;
    EXPECT_FALSE(parcel_allowed(bytes.data())) << error.what();
    EXPECT_EQ(error.sentence().rfind("sent a bad mailbox header: ", 0), 0u);
  }
}

using Input = void (*)(uint64_t seed, Seen& seen);

// Both outcomes must be frequent, or the fuzzing shows nothing.
void run(Input input, uint64_t count) {
  Seen seen;
  for (uint64_t seed = 0; seed < count; ++seed) {
    input(seed, seen);
    ASSERT_FALSE(testing::Test::HasFailure()) << "by input " << seed;
  }
  EXPECT_GT(seen.accepted, static_cast<int64_t>(count / 5));
  EXPECT_GT(seen.refused, static_cast<int64_t>(count / 5));
}

TEST(FrameFuzz, HeadersAreRefusedOrEncodeToTheSameBytes) { run(&decode_one, 15'000); }
TEST(FrameFuzz, AStreamOfFramesIsReadAsByAPlainReader) { run(&read_one, 3'000); }
TEST(FrameFuzz, MailboxFramesAreRefusedOrEncodeToTheSameBytes) { run(&parcel_one, 8'000); }

TEST(FrameFuzz, DISABLED_AMillionInputs) {
  run(&decode_one, 500'000);
  run(&read_one, 200'000);
  run(&parcel_one, 300'000);
}

}  // namespace
}  // namespace cairn::comm
