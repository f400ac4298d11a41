// What islands write into their common log (decision_log.h), and their votes, as bytes.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace cairn::sync {

// Some of the islands, by number.
using IslandSet = std::vector<bool>;
// Some of the islands, each with the number of its start (comm/bridge/bridge.h); 0: it is not among them.
using Incarnations = std::vector<uint64_t>;

// A round among all islands. Epochs begin with a founding.
struct RoundId {
  uint64_t epoch = 0;
  int64_t step = 0;
  int32_t part = 0;  // tells the rounds of one step apart
  auto operator<=>(const RoundId&) const = default;
};

// What one island says about a round. It says it once and never changes it.
struct RoundVote {
  Incarnations held;      // the updates that it has
  Incarnations proposed;  // islands that it proposes as members
  bool stop = false;      // it was asked to stop
  bool operator==(const RoundVote&) const = default;
};

// The result of a round, identical on every island.
struct RoundDecision {
  Incarnations included;  // the updates that count
  Incarnations lost;      // members that leave
  Incarnations joined;    // islands that become members
  bool stop = false;      // some island was asked to stop
  uint64_t digest = 0;    // of the merged values
  bool operator==(const RoundDecision&) const = default;
};

// Islands that start, or start again, from the state of one of them.
struct Founding {
  uint64_t epoch = 0;
  int64_t step = 0;
  int source = 0;  // the island whose state is used
  Incarnations members;
  IslandSet needs_state;  // members with another state
  bool operator==(const Founding&) const = default;
};

// An entry of the log.
struct DecisionEntry {
  enum class Kind : uint64_t {
    founding = 1,
    proposal,  // of a leader that has all updates: counts if every member has voted for just that
    decision,
    membership  // who leaves and joins from the step `round.step` on; written by a leader outside of rounds
  };
  Kind kind = Kind::decision;
  RoundId round = {};           // proposal, decision, membership
  RoundDecision decision = {};  // proposal, decision; of a membership: `lost` and `joined`
  Founding founding = {};       // founding
  bool operator==(const DecisionEntry&) const = default;
};

std::vector<std::byte> encode(const DecisionEntry& entry);
std::vector<std::byte> encode(const RoundId& round, const RoundVote& vote);
// What a log led to: one founding, then entries of rounds.
std::vector<std::byte> encode(const std::vector<DecisionEntry>& entries);

// Nothing if the bytes are not exactly that, among so many islands.
std::optional<DecisionEntry> decode_decision_entry(std::span<const std::byte> bytes, size_t islands);
std::optional<std::pair<RoundId, RoundVote>> decode_vote(std::span<const std::byte> bytes, size_t islands);
std::optional<std::vector<DecisionEntry>> decode_decision_entries(std::span<const std::byte> bytes, size_t islands);

}  // namespace cairn::sync
