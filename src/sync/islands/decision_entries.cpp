#include "sync/islands/decision_entries.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn::sync {
namespace {

// Everything is a row of 64-bit words in the order of memory (all machines of today are little-endian).
using Words = std::vector<uint64_t>;

std::vector<std::byte> bytes_of_words(const Words& words) {
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

// Nothing unless there are exactly `count` words.
std::optional<Words> read_words(std::span<const std::byte> bytes, size_t count) {
  if (bytes.size() != count * sizeof(uint64_t)) return std::nullopt;
  Words words(count);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

void add(Words& words, const Incarnations& islands) { words.insert(words.end(), islands.begin(), islands.end()); }
void add(Words& words, const RoundId& round) {
  words.insert(words.end(), {round.epoch, static_cast<uint64_t>(round.step), static_cast<uint64_t>(round.part)});
}

class WordReader {
 public:
  WordReader(const Words& words, size_t islands) : words_(words), islands_(islands) {}
  uint64_t word() { return words_[at_++]; }
  int64_t number() { return static_cast<int64_t>(word()); }
  RoundId round() {
    RoundId round;
    round.epoch = word();
    round.step = number();
    round.part = static_cast<int32_t>(number());
    return round;
  }
  Incarnations islands() {
    Incarnations all(islands_);
    for (uint64_t& one : all) one = word();
    return all;
  }

 private:
  const Words& words_;
  const size_t islands_;
  size_t at_ = 0;
};

size_t words_of(DecisionEntry::Kind kind, size_t islands) {
  return kind == DecisionEntry::Kind::founding ? 4 + 2 * islands : 6 + 3 * islands;
}

}  // namespace

std::vector<std::byte> encode(const DecisionEntry& entry) {
  Words words{static_cast<uint64_t>(entry.kind)};
  if (entry.kind == DecisionEntry::Kind::founding) {
    const Founding& one = entry.founding;
    words.insert(words.end(), {one.epoch, static_cast<uint64_t>(one.step), static_cast<uint64_t>(one.source)});
    add(words, one.members);
    for (const bool needs : one.needs_state) words.push_back(needs ? 1 : 0);
    return bytes_of_words(words);
  }
  add(words, entry.round);
  words.insert(words.end(), {entry.decision.stop ? uint64_t{1} : 0, entry.decision.digest});
  add(words, entry.decision.included);
  add(words, entry.decision.lost);
  add(words, entry.decision.joined);
  return bytes_of_words(words);
}

std::optional<DecisionEntry> decode_decision_entry(std::span<const std::byte> bytes, size_t islands) {
  DecisionEntry entry;
  if (bytes.size() < sizeof entry.kind) return std::nullopt;
  std::memcpy(&entry.kind, bytes.data(), sizeof entry.kind);
  if (entry.kind < DecisionEntry::Kind::founding || entry.kind > DecisionEntry::Kind::membership) return std::nullopt;
  const std::optional<Words> words = read_words(bytes, words_of(entry.kind, islands));
  if (!words) return std::nullopt;
  WordReader read(*words, islands);
  read.word();
  if (entry.kind == DecisionEntry::Kind::founding) {
    Founding& one = entry.founding;
    one.epoch = read.word();
    one.step = read.number();
    one.source = static_cast<int>(read.number());
    one.members = read.islands();
    for (const uint64_t needs : read.islands()) one.needs_state.push_back(needs != 0);
    if (one.source < 0 || static_cast<size_t>(one.source) >= islands) return std::nullopt;
    return entry;
  }
  entry.round = read.round();
  entry.decision.stop = read.word() != 0;
  entry.decision.digest = read.word();
  entry.decision.included = read.islands();
  entry.decision.lost = read.islands();
  entry.decision.joined = read.islands();
  return entry;
}

std::vector<std::byte> encode(const RoundId& round, const RoundVote& vote) {
  Words words;
  add(words, round);
  words.push_back(vote.stop ? 1 : 0);
  add(words, vote.held);
  add(words, vote.proposed);
  return bytes_of_words(words);
}

std::optional<std::pair<RoundId, RoundVote>> decode_vote(std::span<const std::byte> bytes, size_t islands) {
  const std::optional<Words> words = read_words(bytes, 4 + 2 * islands);
  if (!words) return std::nullopt;
  WordReader read(*words, islands);
  const RoundId round = read.round();
  RoundVote vote;
  vote.stop = read.word() != 0;
  vote.held = read.islands();
  vote.proposed = read.islands();
  return std::pair{round, std::move(vote)};
}

std::vector<std::byte> encode(const std::vector<DecisionEntry>& entries) {
  std::vector<std::byte> all;
  for (const DecisionEntry& entry : entries) {
    const std::vector<std::byte> one = encode(entry);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::optional<std::vector<DecisionEntry>> decode_decision_entries(std::span<const std::byte> bytes, size_t islands) {
  std::vector<DecisionEntry> entries;
  while (!bytes.empty()) {
    DecisionEntry::Kind kind{};
    if (bytes.size() < sizeof kind) return std::nullopt;
    std::memcpy(&kind, bytes.data(), sizeof kind);
    const size_t length = words_of(kind, islands) * sizeof(uint64_t);
    if (bytes.size() < length) return std::nullopt;
    std::optional<DecisionEntry> entry = decode_decision_entry(bytes.first(length), islands);
    if (!entry) return std::nullopt;
    entries.push_back(std::move(*entry));
    bytes = bytes.subspan(length);
  }
  return entries;
}

}  // namespace cairn::sync
