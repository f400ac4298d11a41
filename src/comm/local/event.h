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
using PeerKey = std::pair<int, EnvelopeKey>;  // a peer, and a message or region of it

// A 64-bit hash of its arguments.
uint64_t scramble(std::initializer_list<uint64_t> values);

struct PeerKeyHash {
  size_t operator()(const PeerKey& key) const {
    const auto& [group, sequence, step] = key.second;
    return scramble({group, sequence, uint64_t{step} << 32 | static_cast<uint32_t>(key.first)});
  }
};

// A transfer of the local transport.
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

// An event of the simulated network: a message, a timer, or an action of the network itself (fault, thaw, heal).
struct LocalEvent {
  enum class Kind : uint8_t { message, pull, reply, timer, lost, left, silence, fault, thaw, heal };
  Kind kind = Kind::message;
  int from = 0;
  int to = 0;
  Nanoseconds posted{};  // in the sender's time
  Nanoseconds time{};    // of arrival or action
  uint64_t order = 0;    // breaks ties of equal times: a hash with the seed
  uint64_t number = 0;   // counted by the sender
  Envelope envelope = {};
  Purpose purpose = Purpose::control;
  std::shared_ptr<std::byte[]> data = {};  // a copy: the sender may have ended when it arrives
  int64_t bytes = 0;
  int64_t offset = 0;                         // of a pull
  std::weak_ptr<LocalTransfer> sent = {};     // the send, at the sender of a message
  std::weak_ptr<LocalTransfer> asked = {};    // the transfer that waits for a reply or timer
  std::shared_ptr<const LostPeer> loss = {};  // of lost and silence
  std::optional<uint64_t> checksum = {};      // over envelope and data as sent; none in runs without faults
  int fault = -1;                             // index of the fault, of fault, thaw and heal
  bool fault_seen_by_all = false;             // of a silence: the rank is silent towards all
  bool damaged = false;
  bool dropped = false;
  bool told = false;             // the sender was notified
  bool to_be_overtaken = false;  // the next message of the pair overtakes it
  bool through_card = false;     // the receiver's shared NIC has taken it
  bool pending = true;           // still in the queue

  bool carries_data() const { return kind == Kind::message || kind == Kind::reply; }
  bool counts() const { return carries_data() || kind == Kind::pull; }                   // is numbered among the messages of its pair
  bool travels() const { return counts() || kind == Kind::lost || kind == Kind::left; }  // a partition stops it
  bool of_network() const { return kind == Kind::fault || kind == Kind::thaw || kind == Kind::heal; }
  uint64_t computed_checksum() const;
  Ledger::Message booking() const { return {from, to, bytes, purpose, posted, time}; }
};

std::string_view name(LocalEvent::Kind kind);

}  // namespace cairn::comm
