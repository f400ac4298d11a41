#include "comm/consensus/raft_wire.h"

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

namespace cairn::comm {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they are in memory");

// Limits on what bytes may claim, before anything is allocated.
constexpr uint64_t kMembersMax = 1 << 16;

class RaftWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_integral_v<T>);
    const auto raw = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  void members(const std::vector<int>& sites) {
    number<uint64_t>(sites.size());
    for (const int site : sites) number<int32_t>(site);
  }
  void body(const std::vector<std::byte>& more) {
    number<uint64_t>(more.size());
    bytes_.insert(bytes_.end(), more.begin(), more.end());
  }
  void entries(const std::vector<RaftEntry>& list) {
    number<uint64_t>(list.size());
    for (const RaftEntry& entry : list) {
      number(entry.term);
      number(static_cast<uint8_t>(entry.kind));
      members(entry.members);
      body(entry.body);
    }
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Every length is checked against the bytes that are left. After a failure everything that is read is empty.
class RaftReader {
 public:
  explicit RaftReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  bool complete() const { return good_ && rest_.empty(); }

  template <typename T>
  T number() {
    T value{};
    if (!check(sizeof(T))) return value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  std::vector<int> members() {
    const auto count = number<uint64_t>();
    std::vector<int> sites;
    if (!check(count <= kMembersMax ? count * sizeof(int32_t) : std::numeric_limits<uint64_t>::max())) return sites;
    for (uint64_t i = 0; i < count; ++i) {
      sites.push_back(number<int32_t>());
      if (sites.back() < 0 || (i > 0 && sites[i] <= sites[i - 1])) good_ = false;
    }
    return sites;
  }
  std::vector<std::byte> body() {
    const auto count = number<uint64_t>();
    if (!check(count)) return {};
    std::vector<std::byte> taken(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(count));
    rest_ = rest_.subspan(count);
    return taken;
  }
  std::vector<RaftEntry> entries() {
    constexpr uint64_t kEntryBytesMin = 8 + 1 + 8 + 8;
    const auto count = number<uint64_t>();
    std::vector<RaftEntry> list;
    if (count > rest_.size() / kEntryBytesMin) good_ = false;
    for (uint64_t i = 0; good_ && i < count; ++i) {
      RaftEntry entry;
      entry.term = number<uint64_t>();
      entry.kind = kind<RaftEntry::Kind>(static_cast<uint8_t>(RaftEntry::Kind::value));
      entry.members = members();
      entry.body = body();
      list.push_back(std::move(entry));
    }
    return list;
  }
  template <typename Enum>
  Enum kind(uint8_t most) {
    const auto value = number<uint8_t>();
    if (value > most) good_ = false;
    return static_cast<Enum>(value <= most ? value : 0);
  }

 private:
  bool check(uint64_t bytes) {
    good_ = good_ && bytes <= rest_.size();
    return good_;
  }

  std::span<const std::byte> rest_;
  bool good_ = true;
};

}  // namespace

std::vector<std::byte> encode(const RaftMessage& message) {
  RaftWriter out;
  out.number(static_cast<uint8_t>(message.kind));
  out.number(static_cast<uint8_t>(message.granted));
  for (const uint64_t value : {message.term, message.index, message.log_term, message.commit}) out.number(value);
  out.entries(message.entries);
  out.members(message.members);
  out.body(message.snapshot);
  return out.take();
}

std::optional<RaftMessage> decode_raft_message(std::span<const std::byte> bytes) {
  RaftReader in(bytes);
  RaftMessage message;
  message.kind = in.kind<RaftMessage::Kind>(static_cast<uint8_t>(RaftMessage::Kind::resign));
  message.granted = in.kind<uint8_t>(1) != 0;
  for (uint64_t* value : {&message.term, &message.index, &message.log_term, &message.commit}) *value = in.number<uint64_t>();
  message.entries = in.entries();
  message.members = in.members();
  message.snapshot = in.body();
  return in.complete() ? std::optional(std::move(message)) : std::nullopt;
}

std::vector<std::byte> encode(const RaftState& state) {
  RaftWriter out;
  out.number(state.term);
  out.number<int32_t>(state.voted_for);
  out.number(state.first);
  out.number(state.snapshot_term);
  out.members(state.snapshot_members);
  out.body(state.snapshot);
  out.entries(state.entries);
  return out.take();
}

std::optional<RaftState> decode_raft_state(std::span<const std::byte> bytes) {
  RaftReader in(bytes);
  RaftState state;
  state.term = in.number<uint64_t>();
  state.voted_for = in.number<int32_t>();
  state.first = in.number<uint64_t>();
  state.snapshot_term = in.number<uint64_t>();
  state.snapshot_members = in.members();
  state.snapshot = in.body();
  state.entries = in.entries();
  return in.complete() && state.first >= 1 ? std::optional(std::move(state)) : std::nullopt;
}

}  // namespace cairn::comm
