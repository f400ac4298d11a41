#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "comm/completion.h"
#include "comm/envelope.h"
#include "comm/ledger.h"
#include "comm/transport.h"

namespace cairn::comm {

using Nanoseconds = std::chrono::nanoseconds;
using EnvelopeKey = std::tuple<uint64_t, uint64_t, uint32_t>;
using PeerKey = std::pair<int, EnvelopeKey>;  // who, and which message or region

// Scrambles its arguments into 64 even bits.
uint64_t scramble(std::initializer_list<uint64_t> values);

struct PeerKeyHash {
  size_t operator()(const PeerKey& key) const {
    const auto& [group, sequence, step] = key.second;
    return scramble({group, sequence, uint64_t{step} << 32 | static_cast<uint32_t>(key.first)});
  }
};

// What a rank asked for.
struct LocalTransfer final : Transfer {
  enum class Kind { send, recv, recv_view, expose, pull, timer };
  Kind kind = Kind::send;
  Envelope envelope;
  Purpose purpose = Purpose::control;
  void* data = nullptr;  // null once cancelled
  int64_t bytes = 0;
  PullMode mode = PullMode::replace;
  Dtype dtype = Dtype::u8;
};

// Something that travels on the virtual network, or a timer, or what the network itself does at some time (fault, thaw, heal).
struct LocalEvent {
  enum class Kind : uint8_t { message, pull, reply, timer, lost, left, silence, fault, thaw, heal };
  Kind kind = Kind::message;
  int from = 0;
  int to = 0;
  Nanoseconds posted{};  // the sender's time
  Nanoseconds time{};    // of arrival
  uint64_t order = 0;    // decides among equal times: a hash of the seed
  uint64_t number = 0;   // of the post, at its sender
  Envelope envelope = {};
  Purpose purpose = Purpose::control;
  std::shared_ptr<std::byte[]> data = {};  // a copy: the sender may be gone when it arrives
  int64_t bytes = 0;
  int64_t offset = 0;                         // of a pull
  std::weak_ptr<LocalTransfer> sent = {};     // at the sender of a message
  std::weak_ptr<LocalTransfer> asked = {};    // at the rank that waits for a reply or timer
  std::shared_ptr<const LostPeer> loss = {};  // of lost and silence
  std::optional<uint64_t> checksum = {};      // over envelope and data, as they were sent; none where nothing is ever damaged
  int fault = -1;                             // which one, of fault, thaw and heal
  bool fault_seen_by_all = false;             // of a silence: the rank is silent to all
  bool damaged = false;
  bool dropped = false;
  bool told = false;             // the sender knows that it is gone
  bool to_be_overtaken = false;  // by the next message of its pair
  bool pending = true;           // yet to happen

  bool carries_data() const { return kind == Kind::message || kind == Kind::reply; }
  bool counts() const { return carries_data() || kind == Kind::pull; }                   // among a pair's messages
  bool travels() const { return counts() || kind == Kind::lost || kind == Kind::left; }  // so that a partition stops it
  bool of_network() const { return kind == Kind::fault || kind == Kind::thaw || kind == Kind::heal; }
  uint64_t computed_checksum() const;
  Ledger::Message booking() const { return {from, to, bytes, purpose, posted, time}; }
};

std::string_view name(LocalEvent::Kind kind);

}  // namespace cairn::comm
