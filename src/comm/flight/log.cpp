#include "comm/flight/log.h"

#include <algorithm>
#include <cstring>

namespace cairn::comm {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

uint64_t get(const FlightWord& word) { return word.load(std::memory_order_relaxed); }
int64_t get_signed(const FlightWord& word) { return static_cast<int64_t>(get(word)); }

template <size_t n>
std::string get_text(const std::array<FlightWord, n>& words) {
  std::array<uint64_t, n> plain{};
  for (size_t i = 0; i < n; ++i) plain[i] = get(words[i]);
  const char* text = reinterpret_cast<const char*>(plain.data());
  std::string out(text, ::strnlen(text, sizeof plain));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return out;
}

// Reads the times of one memory.
struct Times {
  Nanoseconds epoch;
  // The memory may hold anything: sums wrap around.
  Nanoseconds at(uint64_t stamp) const { return Nanoseconds(static_cast<int64_t>(static_cast<uint64_t>(epoch.count()) + stamp - 1)); }
  std::optional<Nanoseconds> maybe(uint64_t stamp) const { return stamp == 0 ? std::nullopt : std::optional(at(stamp)); }
};

// Calls `read(entry)` for the entries of a ring, oldest first, and keeps what was not rewritten meanwhile.
template <typename Entry, size_t n, typename Read>
auto read_ring(const std::array<Entry, n>& ring, uint64_t written, Read read) {
  std::vector<decltype(read(ring[0], uint64_t{0}))> all;
  for (uint64_t number = written > n ? written - n : 0; number < written; ++number) {
    const Entry& entry = ring[number % n];
    if (entry.stamp.load(std::memory_order_acquire) != number + 1) continue;
    auto one = read(entry, number);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (get(entry.stamp) == number + 1) all.push_back(std::move(one));
  }
  return all;
}

template <typename E>
E checked(uint64_t value, E last) {
  return static_cast<E>(std::min(value & 0xff, static_cast<uint64_t>(last)));
}

FlightLog::Operation read_operation(const FlightOperationEntry& entry, uint64_t number, const Times& times) {
  const uint64_t what = get(entry.what);
  FlightLog::Operation one;
  one.number = number;
  one.group = get(entry.group);
  one.sequence = get(entry.sequence);
  one.kind = checked(what, kLastOperation);
  one.dtype = static_cast<Dtype>(what >> 8 & 0xff);
  one.purpose = checked(what >> 16, Purpose::relay);
  one.activity = checked(what >> 24, Activity::ended);
  one.sends = (what >> 32 & 1) != 0;
  one.peer = static_cast<int>(what >> 40) - 1;
  one.bytes = get_signed(entry.bytes);
  one.label = get_text(entry.label);
  one.entered = times.at(get(entry.entered));
  one.started = times.maybe(get(entry.started));
  one.ended = times.maybe(entry.ended.load(std::memory_order_acquire));
  one.waited = Nanoseconds(get_signed(entry.waited));
  one.failed = get(entry.failed) != 0;
  return one;
}

std::vector<FlightLog::Group> read_groups(const FlightMemory& memory) {
  std::vector<FlightLog::Group> all;
  const uint64_t known = std::min<uint64_t>(memory.groups_known.load(std::memory_order_acquire), kFlightGroups);
  for (uint64_t i = 0; i < known; ++i) {
    const FlightGroupEntry& entry = memory.groups[i];
    const uint64_t first = get(entry.first), size = get(entry.size);
    if (first > kFlightMembers || size > kFlightMembers - first) continue;
    FlightLog::Group& group = all.emplace_back();
    group.id = get(entry.id);
    group.name = get_text(entry.name);
    group.next_sequence = entry.next_sequence.load(std::memory_order_acquire);
    for (uint64_t m = first; m < first + size; ++m) group.ranks.push_back(memory.members[m].load(std::memory_order_relaxed));
  }
  return all;
}

}  // namespace

const FlightLog::Operation* FlightLog::operation(uint64_t number) const {
  const auto at =
      std::lower_bound(operations.begin(), operations.end(), number, [](const Operation& one, uint64_t n) { return one.number < n; });
  return at != operations.end() && at->number == number ? &*at : nullptr;
}

const FlightLog::Group* FlightLog::group(uint64_t id) const {
  const auto at = std::find_if(groups.begin(), groups.end(), [&](const Group& one) { return one.id == id; });
  return at == groups.end() ? nullptr : &*at;
}

std::string_view name(Activity activity) {
  constexpr std::array<std::string_view, kActivities> kNames{
      "starting", "loading data", "forward and backward", "the update", "saving a snapshot", "evaluating", "ended"};
  return kNames[std::min<size_t>(static_cast<size_t>(activity), kNames.size() - 1)];
}

std::optional<FlightLog> read_flight_log(const FlightMemory& memory) {
  if (memory.attached.load(std::memory_order_acquire) != 1) return std::nullopt;
  const Times times{Nanoseconds(get_signed(memory.epoch))};
  FlightLog log;
  log.rank = static_cast<int>(get(memory.rank));
  log.size = static_cast<int>(get(memory.size));
  log.process = get_signed(memory.process);
  log.host = get_text(memory.host);
  log.run = get_text(memory.run);
  log.role = get(memory.role);
  log.step = get_signed(memory.step);
  log.activity = checked(get(memory.activity), Activity::ended);
  log.activity_since = times.at(memory.activity_since.load(std::memory_order_acquire));
  if (const uint64_t waiting = memory.waiting.load(std::memory_order_acquire)) log.waiting = waiting - 1;
  log.waiting_since = times.at(get(memory.waiting_since));
  log.wait_seen = std::max(log.waiting_since, times.at(get(memory.wait_seen)));
  log.groups_missed = get_signed(memory.groups_missed);
  // Groups before operations: an operation that is seen has been counted in its group or comes later.
  log.operations_begun = static_cast<int64_t>(memory.operations_begun.load(std::memory_order_acquire));
  log.operations = read_ring(memory.operations, static_cast<uint64_t>(log.operations_begun),
                             [&](const FlightOperationEntry& entry, uint64_t number) { return read_operation(entry, number, times); });
  log.groups = read_groups(memory);
  log.messages =
      read_ring(memory.messages, memory.messages_ended.load(std::memory_order_acquire), [&](const FlightMessageEntry& entry, uint64_t) {
        return FlightLog::Message{static_cast<int>(get(entry.peer)), get_signed(entry.bytes), times.at(get(entry.ended)),
                                  Nanoseconds(get_signed(entry.service))};
      });
  log.steps = read_ring(memory.steps, memory.steps_begun.load(std::memory_order_acquire), [&](const FlightStepEntry& entry, uint64_t) {
    const uint64_t ended = entry.ended.load(std::memory_order_acquire);
    return FlightLog::Step{get_signed(entry.step), times.at(get(entry.begun)), ended == 0 ? Nanoseconds::min() : times.at(ended),
                           Nanoseconds(get_signed(entry.waited)), Nanoseconds(get_signed(entry.loading))};
  });
  std::erase_if(log.steps, [](const FlightLog::Step& step) { return step.ended == Nanoseconds::min(); });
  for (int rank = 0; rank < std::min(log.size, kFlightPeers); ++rank) {
    const FlightPeerEntry& entry = memory.peers[static_cast<size_t>(rank)];
    FlightLog::Peer peer{.rank = rank};
    peer.posted_bytes = get_signed(entry.posted_bytes);
    peer.completed_bytes = get_signed(entry.completed_bytes);
    peer.messages = get_signed(entry.messages);
    peer.received_bytes = get_signed(entry.received_bytes);
    peer.sending = get_signed(entry.sending);
    peer.awaited = get_signed(entry.awaited);
    peer.receive_wait = Nanoseconds(get_signed(entry.receive_wait));
    peer.last_progress = times.maybe(get(entry.last_progress));
    const bool used = peer.posted_bytes > 0 || peer.received_bytes > 0 || peer.sending > 0 || peer.awaited > 0;
    if (used) log.peers.push_back(peer);
  }
  return log;
}

}  // namespace cairn::comm
