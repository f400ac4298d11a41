// Shared memory as a peer gone wrong could leave it: positions, headers of records and status boards with anything in them. Whoever reads
// them stays inside the memory, ends, keeps no more than it may, and says what is wrong as a cairn::Error. The long form: test_comm
// --gtest_also_run_disabled_tests --gtest_filter='*Fuzz.DISABLED_*', built with the address sanitizer.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "comm/fuzz.h"
#include "comm/shm/link.h"
#include "comm/shm/ring_buffer.h"
#include "comm/shm/segment.h"

namespace cairn::comm {
namespace {

using fuzz::Bytes;
using fuzz::Field;
using fuzz::Random;

constexpr Field kRecordFields[] = {{offsetof(Record, length), 4},
                                   {offsetof(Record, length), 4},
                                   {offsetof(Record, kind), 1},
                                   {offsetof(Record, purpose), 1},
                                   {offsetof(Record, placed), 1},
                                   {offsetof(Record, withdrawn), 1},
                                   {offsetof(Record, bytes), 8},
                                   {offsetof(Record, part), 8},
                                   {offsetof(Record, offset), 8},
                                   {offsetof(Record, offset), 8},
                                   {offsetof(Record, offset), 8},
                                   {offsetof(Record, number), 8},
                                   {offsetof(Record, envelope) + offsetof(Envelope, group), 8},
                                   {offsetof(Record, envelope) + offsetof(Envelope, step), 4},
                                   {offsetof(Record, envelope) + offsetof(Envelope, signature), 4},
                                   {offsetof(Record, envelope) + offsetof(Envelope, signature) + offsetof(Signature, dtype), 1},
                                   {offsetof(Record, envelope) + offsetof(Envelope, signature) + offsetof(Signature, reduce), 1}};

// Counts accepted and refused inputs: a test requires many of both.
struct Seen {
  int64_t accepted = 0, refused = 0;
};

// A ring in memory of exactly its length, so that a byte beside it is seen by the sanitizer.
struct Ring {
  static constexpr int64_t kCapacity = 4096;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  RingPositions positions{};
  std::unique_ptr<std::byte, Free> memory{static_cast<std::byte*>(std::aligned_alloc(64, kCapacity))};
  RingWriter writer{positions, memory.get(), kCapacity};
  RingReader reader{positions, memory.get(), kCapacity};
  std::vector<Record*> written;

  bool inside(const std::byte* from, int64_t bytes) const {
    return bytes >= 0 && bytes <= kCapacity && from >= memory.get() && from - memory.get() <= kCapacity - bytes;
  }

  bool write(int64_t payload, uint64_t number) {
    Record* record = writer.reserve(payload);
    if (!record) return false;
    EXPECT_TRUE(inside(reinterpret_cast<const std::byte*>(record), static_cast<int64_t>(sizeof(Record)) + payload));
    if (testing::Test::HasFailure()) return false;
    record->kind = RecordKind::message;
    record->placed = false;
    record->bytes = record->part = payload;
    record->number = number;
    record->envelope = {};
    std::memset(record->payload(), static_cast<int>(number), static_cast<size_t>(payload));
    writer.publish();
    written.push_back(record);
    return true;
  }
};

void spoil(Random& random, Ring& ring) {
  switch (random.below(7)) {
    case 0: {  // longer, in a way that fits together
      Record& record = *ring.written[random.below(ring.written.size())];
      const auto more = static_cast<uint32_t>(kRecordAlign * random.below(40));
      record.length += more;
      record.part = static_cast<int64_t>(static_cast<uint64_t>(record.part) + more);
      record.bytes = record.part;
      if (random.one_in(2)) ring.positions.tail += more;
      break;
    }
    case 1:
    case 2:
    case 6: {
      auto* head = reinterpret_cast<std::byte*>(ring.written[random.below(ring.written.size())]);
      fuzz::spoil_field(random, {head, sizeof(Record)}, kRecordFields, Ring::kCapacity);
      break;
    }
    case 3: {
      std::atomic<uint64_t>& position = random.one_in(3) ? ring.positions.head : ring.positions.tail;
      position = fuzz::boundary(random, position, Ring::kCapacity);
      break;
    }
    case 4:
      ring.memory.get()[random.below(Ring::kCapacity)] ^= static_cast<std::byte>(1u << random.below(8));
      break;
    default:
      for (uint64_t i = random.below(300), at = random.below(Ring::kCapacity - 300); i > 0; --i, ++at) {
        ring.memory.get()[at] = static_cast<std::byte>(random.bits());
      }
  }
}

// How many records come out, each held for a while and all of them inside the ring. It may be spoiled meanwhile.
int64_t read_all(Random& random, Ring& ring, bool honest) {
  std::vector<uint64_t> held;
  int64_t count = 0;
  while (const Record* record = ring.reader.peek()) {
    const auto* at = reinterpret_cast<const std::byte*>(record);
    EXPECT_TRUE(ring.inside(at, static_cast<int64_t>(sizeof(Record))));
    EXPECT_TRUE(ring.inside(at, record->length));
    EXPECT_TRUE(record->kind != RecordKind::padding && record->kind <= RecordKind::release);
    EXPECT_TRUE(record->part >= 0 && record->part <= record->bytes);
    EXPECT_TRUE(record->placed || static_cast<int64_t>(sizeof(Record)) + record->part <= int64_t{record->length});
    EXPECT_LE(++count, Ring::kCapacity / kRecordAlign);  // more than fit: it goes round and round
    if (testing::Test::HasFailure()) break;
    held.push_back(ring.reader.take(*record));
    if (!honest && random.one_in(4)) spoil(random, ring);
    while (!held.empty() && random.one_in(2)) {
      std::swap(held[random.below(held.size())], held.back());
      ring.reader.give_back(held.back());
      held.pop_back();
    }
  }
  for (const uint64_t ticket : held) ring.reader.give_back(ticket);
  return count;
}

void ring_one(uint64_t seed, Seen& seen) {
  Random random(seed);
  Ring ring;
  std::memset(ring.memory.get(), 0, Ring::kCapacity);
  for (uint64_t i = random.below(8); i > 0; --i) {  // to stand anywhere in the ring
    ASSERT_TRUE(ring.write(static_cast<int64_t>(random.below(800)), i));
    ring.reader.give_back(ring.reader.take(*ring.reader.peek()));
  }
  ring.written.clear();
  for (uint64_t i = 1 + random.below(4); i > 0; --i) ring.write(static_cast<int64_t>(random.below(400)), i);
  const auto written = static_cast<int64_t>(ring.written.size());
  const uint64_t spoils = random.below(4);
  for (uint64_t i = 0; i < spoils; ++i) spoil(random, ring);
  try {
    const int64_t read = read_all(random, ring, spoils == 0);
    if (spoils == 0) {
      EXPECT_EQ(read, written);
    }
    ++seen.accepted;
  } catch (const Error& error) {
    EXPECT_GT(spoils, 0u) << error.what();
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer);
    ++seen.refused;
  }
  for (uint64_t i = 0; i < 20 && ring.write(static_cast<int64_t>(random.below(800)), i); ++i) {
  }
}

// The receiving rank as its link sees it.
class Owner final : public LinkOwner {
 public:
  static constexpr int64_t kEarlyMax = 64 << 10;
  void sent(const std::shared_ptr<Transfer>&, const Ledger::Message&) override {}
  bool may_keep(int, int64_t bytes) const override { return bytes <= kEarlyMax - kept; }
  std::shared_ptr<std::byte[]> early_memory(int, int64_t bytes) override {
    EXPECT_TRUE(bytes >= 0 && bytes <= most) << bytes << " bytes of memory";
    const auto length = static_cast<size_t>(std::clamp<int64_t>(bytes, 0, most));
    kept += bytes;
    auto* made = new std::byte[length];
    pieces_[made] = bytes;
    return {made, [this, bytes](const std::byte* memory) {
              kept -= bytes;
              pieces_.erase(memory);
              delete[] memory;
            }};
  }
  bool holds(const std::byte* data, int64_t bytes) const { return pieces_.contains(data) && pieces_.at(data) == bytes; }
  void wake(int) override {}
  void distrust(int, const char*) override {}
  int64_t kept = 0;
  int64_t most = kEarlyMax;  // or what was asked for as a view, where that is more

 private:
  std::map<const std::byte*, int64_t> pieces_;
};

// One rank's end of the memory that two share.
struct End {
  End(const SharedSegment& segment, int rank)
      : arena(segment.arena(rank).data(), static_cast<int64_t>(segment.arena(rank).size())),
        inbox(rank, done),
        link(segment, rank, 1 - rank, 1 - rank, arena, inbox, owner) {}
  Owner owner;
  CompletionQueue done;
  Arena arena;
  Inbox inbox;
  SharedLink link;
};

// The memory of two ranks. It is made anew now and then: what was touched stays.
class Machine {
 public:
  static constexpr int64_t kRingBytes = 256 << 10;
  static constexpr int64_t kUsed = 64 << 10;

  Machine() : fd_(SharedSegment::create(2)), segment_(fd_, 2) {
    // The first record of a ring is at its beginning. (To reserve one writes there, so that this is for the start alone.)
    for (const int from : {0, 1}) rings_[from] = reinterpret_cast<std::byte*>(segment_.writer(from, 1 - from).reserve(0));
  }
  ~Machine() { ::close(fd_); }
  const SharedSegment& segment() const { return segment_; }

  std::byte* ring(int from) const { return rings_[from]; }
  // They lie a page before the records.
  RingPositions& positions(int from) const { return *reinterpret_cast<RingPositions*>(ring(from) - 4096); }
  void clear() {
    for (const int from : {0, 1}) {
      positions(from).tail = positions(from).head = 0;
      std::memset(ring(from), 0, kUsed);
    }
  }
  bool inside(const std::byte* from, int64_t bytes) const {
    const std::span<std::byte> arena = segment_.arena(1);
    const auto within = [&](const std::byte* begin, int64_t length) { return from >= begin && from - begin <= length - bytes; };
    return within(ring(1), kRingBytes) || within(arena.data(), static_cast<int64_t>(arena.size()));
  }

 private:
  int fd_;
  SharedSegment segment_;
  std::array<std::byte*, 2> rings_;  // by sender
};

struct Sent {
  Envelope envelope;
  std::shared_ptr<void> memory;
  std::byte* data;
  int64_t bytes;
};

int64_t some_length(Random& random) {
  if (random.one_in(400)) return kSharedPartBytes + static_cast<int64_t>(random.below(5000));  // in parts
  return static_cast<int64_t>(random.one_in(3) ? 8000 + random.below(9000) : random.below(500));
}

Sent send_one(Random& random, End& from, uint64_t number) {
  Sent one{{}, nullptr, nullptr, some_length(random)};
  one.envelope.group = 4;
  one.envelope.sequence = number;
  one.envelope.signature = {.kind = OperationKind::all_gather, .count = one.bytes};
  std::memcpy(one.envelope.what, "w", 1);
  if (random.one_in(2)) {
    one.memory = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(one.bytes));
    one.data = static_cast<std::byte*>(one.memory.get());
  } else {
    one.data = static_cast<std::byte*>(from.arena.allocate(one.bytes));
  }
  std::memset(one.data, static_cast<int>(7 * number + 1), static_cast<size_t>(one.bytes));
  from.link.send(one.envelope, Purpose::data, one.data, one.bytes, nullptr, {});
  return one;
}

std::shared_ptr<Receive> ask_for(Random& random, const Sent& sent, End& here, std::vector<std::unique_ptr<std::byte[]>>& memory) {
  auto receive = std::make_shared<Receive>();
  receive->peer = 1;
  receive->envelope = sent.envelope;
  receive->bytes = sent.bytes;
  receive->viewed = random.one_in(2);
  if (receive->viewed) {
    here.owner.most = std::max(here.owner.most, sent.bytes);
  } else {
    memory.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(sent.bytes)));
    receive->data = memory.back().get();
  }
  here.inbox.ask(receive);
  return receive;
}

void spoil(Random& random, Machine& machine, const std::vector<size_t>& records) {
  RingPositions& positions = machine.positions(1);
  std::byte* ring = machine.ring(1);
  switch (random.below(7)) {
    case 0:
      positions.tail = fuzz::boundary(random, positions.tail, Machine::kRingBytes);
      break;
    case 1:
      machine.positions(0).head = fuzz::boundary(random, machine.positions(0).head, Machine::kRingBytes);
      break;
    case 2:
      ring[random.below(Machine::kUsed / 8)] ^= static_cast<std::byte>(1u << random.below(8));
      break;
    case 3: {  // the text of an envelope, without an end
      std::memset(ring + records[random.below(records.size())] + offsetof(Record, envelope) + offsetof(Envelope, what), 7, 40);
      break;
    }
    default:
      fuzz::spoil_field(random, {ring + records[random.below(records.size())], sizeof(Record)}, kRecordFields,
                        static_cast<uint64_t>(machine.segment().arena(1).size()));
  }
}

void check(const Receive& receive, const Sent& sent, const Machine& machine, const Owner& owner, bool honest) {
  if (honest) {
    ASSERT_TRUE(receive.done && !receive.error);
  }
  if (receive.error) {
    const std::string text = receive.error->what();
    EXPECT_LT(text.size(), 400u);
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 32 && c != 127; })) << text;
  }
  if (!receive.done || receive.error || receive.bytes == 0) return;
  const auto* data = receive.viewed ? receive.view : static_cast<const std::byte*>(receive.data);
  ASSERT_NE(data, nullptr);
  if (receive.viewed) {
    EXPECT_TRUE(machine.inside(data, receive.bytes) || owner.holds(data, receive.bytes));
  }
  if (honest) {
    for (const int64_t i : {int64_t{0}, receive.bytes / 2, receive.bytes - 1}) ASSERT_EQ(data[i], sent.data[i]) << i;
  }
}

// Where each record that the peer wrote begins.
std::vector<size_t> records_of(const Machine& machine) {
  std::vector<size_t> found;
  for (size_t at = 0; at < machine.positions(1).tail; at += fuzz::load<uint32_t>(machine.ring(1) + at)) found.push_back(at);
  return found;
}

void link_one(Random& random, Machine& machine, Seen& seen) {
  machine.clear();
  End here(machine.segment(), 0), there(machine.segment(), 1);
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<Sent> sent;
  std::vector<std::shared_ptr<Receive>> receives(1 + random.below(5));
  std::vector<bool> looked(receives.size());
  for (size_t i = 0; i < receives.size(); ++i) sent.push_back(send_one(random, there, i));
  const auto ask_some = [&](uint64_t one_in) {
    for (size_t i = 0; i < receives.size(); ++i) {
      if (!receives[i] && random.one_in(one_in)) receives[i] = ask_for(random, sent[i], here, memory);
    }
    here.link.unpark();
  };
  ask_some(2);
  const uint64_t spoils = random.below(3);
  const std::vector<size_t> records = records_of(machine);
  for (uint64_t i = 0; i < spoils; ++i) spoil(random, machine, records);
  try {
    for (int turn = 0; turn < 6; ++turn) {
      int moves = 0;
      while (here.link.progress()) ASSERT_LT(++moves, 10'000);
      if (turn == 0) ask_some(1);
      for (size_t i = 0; i < receives.size(); ++i) {  // what was looked at is given back
        if (!receives[i]->done || looked[i] || (turn < 5 && random.one_in(2))) continue;
        check(*receives[i], sent[i], machine, here.owner, spoils == 0);
        looked[i] = true;
        receives[i]->held.reset();
      }
      if (turn > 1) there.link.progress();
    }
    if (spoils == 0) {
      EXPECT_EQ(std::count(looked.begin(), looked.end(), true), static_cast<int64_t>(receives.size()));
    }
    ++seen.accepted;
  } catch (const Error& error) {
    EXPECT_GT(spoils, 0u) << error.what();
    EXPECT_EQ(error.kind(), Error::Kind::lost_peer) << error.what();
    ++seen.refused;
  }
  here.inbox.clear();
  for (const auto& receive : receives) {
    if (receive) receive->held.reset();
  }
}

void links(uint64_t count, Seen& seen) {
  std::unique_ptr<Machine> machine;
  for (uint64_t seed = 0; seed < count; ++seed) {
    if (seed % 2000 == 0) machine = std::make_unique<Machine>();
    Random random(seed);
    link_one(random, *machine, seen);
    ASSERT_FALSE(testing::Test::HasFailure()) << "by input " << seed;
  }
}

void rings(uint64_t count, Seen& seen) {
  for (uint64_t seed = 0; seed < count; ++seed) {
    ring_one(seed, seen);
    ASSERT_FALSE(testing::Test::HasFailure()) << "by input " << seed;
  }
}

// Both outcomes must be frequent, or the fuzzing shows nothing.
void run(void (*inputs)(uint64_t, Seen&), uint64_t count) {
  Seen seen;
  inputs(count, seen);
  if (testing::Test::HasFatalFailure()) return;
  EXPECT_GT(seen.accepted, static_cast<int64_t>(count / 5));
  EXPECT_GT(seen.refused, static_cast<int64_t>(count / 5));
}

TEST(SharedFuzz, ASpoiledRingIsRefusedOrReadInside) { run(&rings, 5'000); }
TEST(SharedFuzz, ALinkStaysInsideWhatItsPeerSpoiled) { run(&links, 3'000); }

TEST(SharedFuzz, DISABLED_AMillionInputs) {
  run(&rings, 700'000);
  run(&links, 300'000);
}

// Each record of it is in order; only that there are more of them than fit is not.
TEST(SharedFuzz, ARingThatClaimsToHaveNoEndIsRefused) {
  Ring ring;
  std::memset(ring.memory.get(), 0, Ring::kCapacity);
  for (int64_t at = 0; at < Ring::kCapacity; at += kRecordAlign) {
    auto* record = reinterpret_cast<Record*>(ring.memory.get() + at);
    record->length = kRecordAlign;
    record->kind = RecordKind::padding;
  }
  ring.positions.tail = ~uint64_t{0} / kRecordAlign * kRecordAlign;
  EXPECT_THROW(ring.reader.peek(), Error);
}

TEST(SharedFuzz, ABoardWithAnythingOnItShowsNothingOrSomethingSafe) {
  const int fd = SharedSegment::create(2);
  const SharedSegment segment(fd, 2);
  ::close(fd);
  StatusBoard& board = segment.board(1);
  Envelope honest;
  honest.sequence = 7;
  std::memcpy(honest.what, "w", 1);
  board.publish_operation(honest);
  ASSERT_TRUE(board.read_operation().has_value());
  EXPECT_EQ(board.read_operation()->sequence, 7u);
  int64_t shown = 0, hidden = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    board.publish_operation(honest);
    auto* bytes = reinterpret_cast<std::byte*>(&board);
    for (uint64_t i = random.below(40); i > 0; --i)
      bytes[256 + random.below(sizeof(StatusBoard) - 256)] = static_cast<std::byte>(random.bits());
    const std::optional<Envelope> seen = board.read_operation();
    ++(seen ? shown : hidden);
    if (!seen) continue;
    const std::string text = describe(seen->signature, seen->what);
    EXPECT_LT(text.size(), 200u);
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 32 && c != 127; })) << text;
  }
  EXPECT_GT(shown, 100);
  EXPECT_GT(hidden, 100);
}

// Otherwise the other ranks would crash at their next access.
TEST(SharedFuzz, NobodyCanMakeTheMemoryShorter) {
  const int fd = SharedSegment::create(2);
  EXPECT_NE(::ftruncate(fd, 0), 0);
  ::close(fd);
}

}  // namespace
}  // namespace cairn::comm
