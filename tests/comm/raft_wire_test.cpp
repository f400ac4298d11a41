#include "comm/consensus/raft_wire.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/files/faulty_disk.h"
#include "base/random.h"
#include "comm/consensus/raft_file.h"
#include "harness/scratch_folder.h"

namespace cairn::comm {
namespace {

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(i * 37));
  return bytes;
}

RaftState some_state() {
  return {.term = 9,
          .voted_for = 2,
          .first = 4,
          .snapshot_term = 3,
          .snapshot_members = {0, 2, 5},
          .snapshot = some_bytes(11),
          .entries = {{.term = 8, .kind = RaftEntry::Kind::no_op},
                      {.term = 8, .kind = RaftEntry::Kind::members, .members = {0, 2}},
                      {.term = 9, .kind = RaftEntry::Kind::value, .members = {}, .body = some_bytes(300)}}};
}

RaftMessage some_message() {
  return {.kind = RaftMessage::Kind::install,
          .term = std::numeric_limits<uint64_t>::max(),
          .index = 5,
          .log_term = 4,
          .commit = 3,
          .granted = true,
          .entries = some_state().entries,
          .members = {1, 7},
          .snapshot = some_bytes(3)};
}

TEST(RaftWire, GivesBackWhatItWasGiven) {
  EXPECT_EQ(decode_raft_state(encode(some_state())), some_state());
  const std::optional<RaftMessage> read = decode_raft_message(encode(some_message()));
  ASSERT_TRUE(read);
  EXPECT_EQ(encode(*read), encode(some_message()));
  EXPECT_EQ(read->entries, some_message().entries);
  EXPECT_EQ(read->term, some_message().term);
  EXPECT_EQ(read->members, some_message().members);
}

TEST(RaftWire, RefusesWhatIsCutOffOrTooLong) {
  const std::vector<std::byte> whole = encode(some_message()), state = encode(some_state());
  for (size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(decode_raft_message(std::span(whole).first(length))) << length;
  for (size_t length = 0; length < state.size(); ++length) EXPECT_FALSE(decode_raft_state(std::span(state).first(length))) << length;
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_raft_message(longer));
}

TEST(RaftWire, BelievesNoLengthThatBytesClaim) {
  const std::vector<std::byte> whole = encode(some_message());
  const base::Random random(3);
  for (uint64_t trial = 0; trial < 20'000; ++trial) {  // in bounded memory, and no read outside (sanitizers)
    std::vector<std::byte> bytes = whole;
    for (uint64_t change = 0; change < 1 + trial % 5; ++change)
      bytes[random.below(3 * trial + 2 * change, bytes.size())] = static_cast<std::byte>(random.below(3 * trial + 2 * change + 1, 256));
    const std::optional<RaftMessage> read = decode_raft_message(bytes);
    if (read) {
      EXPECT_EQ(encode(*read), bytes);
    }
  }
}

TEST(RaftFile, KeepsTheStateAcrossRestartsAndRefusesDamage) {
  const harness::ScratchFolder scratch;
  EXPECT_EQ(RaftFile(scratch / "log").load(), RaftState{});
  RaftFile(scratch / "log").save(some_state());
  EXPECT_EQ(RaftFile(scratch / "log").load(), some_state());
  std::string text = scratch.text_of("log");
  for (const size_t at : {size_t{0}, size_t{9}, size_t{30}, text.size() - 1}) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    scratch.file("damaged", damaged);
    try {
      RaftFile(scratch / "damaged").load();
      ADD_FAILURE() << "byte " << at;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
      EXPECT_THAT(error.what(), testing::HasSubstr((scratch / "damaged").string()));
    }
  }
}

TEST(RaftFile, AFullDiskLeavesTheStateBefore) {
  const harness::ScratchFolder scratch;
  RaftFile(scratch / "log").save(some_state());
  const base::FaultyDisk full({.full_after_bytes = 10});
  EXPECT_THROW(RaftFile(scratch / "log", full).save({}), Error);
  EXPECT_EQ(RaftFile(scratch / "log").load(), some_state());
}

}  // namespace
}  // namespace cairn::comm
