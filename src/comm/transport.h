#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/completion.h"
#include "comm/dtype.h"
#include "comm/envelope.h"
#include "comm/label.h"
#include "comm/ledger.h"
#include "comm/link_facts.h"

namespace cairn::comm {

class DeviceGroup;
class FlightRecorder;
class ShmGroup;

// A rank that is lost, and why.
struct LostPeer {
  int rank = -1;     // the lost rank
  int culprit = -1;  // the cause: the rank itself, or the one whose loss made it give up
  std::string reason;
  bool tainted = false;  // its last message may be wrong
};

// What a pull does with the bytes: overwrite the destination, or add to it.
enum class PullMode : uint8_t { replace, add };

// How collectives cut long messages into pieces, so that transfer and reduction overlap. The same on all ranks of a group.
struct Chunking {
  int64_t bytes = 512 << 10;
  int64_t in_flight = 4;
};

// The seam of all networks: point-to-point messages between ranks, and regions that peers may read. Collectives are written once over it.
// Implementations: local (simulated), net (processes), mpi; nccl wraps one of them.
//
// - Threads: one thread uses a transport.
// - Progress: messages move only inside drive, spin and poll; a send may leave at once.
// - Ownership: memory passed in must stay valid until its Completion is done or destroyed. Destroying an unfinished one cancels it.
// - Matching: by (sender, group, sequence, step) of the Envelope. A message with that key and another signature is a mismatch.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) = 0;
  virtual Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) = 0;
  // Like recv without a copy: the bytes are read where the transport has them (in the sender's memory if it is shared), at view() of the
  // finished completion, for as long as the completion lives.
  virtual Completion recv_view(int from, const Envelope& envelope, int64_t bytes) = 0;

  // Lets peers pull from this region under the envelope's key, for as long as the completion lives. It is never done.
  virtual Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) = 0;
  // Reads from a region that the peer exposes, now or later. The ledger of the peer books it.
  virtual Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, PullMode mode, Dtype dtype) = 0;
  // The shared-memory group of these ranks (shm/group.h); null: they do not all share memory. The same answer on all of them.
  virtual ShmGroup* shm_group(const std::vector<int>& /*ranks*/, uint64_t /*group*/) { return nullptr; }
  virtual Chunking chunking(const std::vector<int>& /*ranks*/) const { return {}; }
  virtual LinkFacts link_facts(const std::vector<int>& /*ranks*/) const { return {}; }  // the same on all of these ranks
  // Done at this time of clock().
  virtual Completion timer(std::chrono::nanoseconds at) = 0;

  virtual void cancel(Transfer& transfer) = 0;

  // Makes progress until `done` returns true (then returns true) or clock() reaches `until` (then false). Calls `done` after each change.
  // `doing` names what this rank waits for, for error messages.
  virtual bool drive(const std::function<bool()>& done, std::chrono::nanoseconds until, const std::string& doing) = 0;
  virtual void poll() = 0;
  // Like drive, by polling for about a millisecond: most waits are that short. False: not done, or polling is of no use here.
  virtual bool spin(const std::function<bool()>& /*done*/) { return false; }
  // Publishes the operation that this rank starts, for others that wonder why it is late.
  virtual void publish_operation(const Envelope& /*starting*/) {}
  virtual std::optional<Envelope> last_started(int /*rank*/) const {
    return std::nullopt;
  }                                                                               // what that rank started last, if it can be observed
  virtual std::chrono::nanoseconds status_age(int /*rank*/) const { return {}; }  // an upper bound on the age of that

  virtual FlightRecorder* recorder() { return nullptr; }  // records what this rank does (flight/recorder.h); null: nothing is recorded

  virtual const std::vector<LostPeer>& lost_peers() const = 0;
  virtual bool left(int /*rank*/) const { return false; }  // that rank has ended in good order, and all its messages have arrived
  virtual void fail(const std::string& reason, int culprit) = 0;

  // Sets the callback for unexpected messages: those without a receive, or with another signature than their receive. The world checks
  // them against this rank's own operations. It may be called twice for one message.
  virtual void on_early(std::function<void(int from, const Envelope&)> tell) = 0;

  // Device-to-device communication of these ranks; null: their tensors travel through host memory. `group` is the group's id, the same on
  // all of them.
  virtual std::shared_ptr<DeviceGroup> device_group(const std::vector<int>& /*ranks*/, uint64_t /*group*/) { return nullptr; }

  virtual std::shared_ptr<void> allocate(int64_t bytes) = 0;
  virtual const base::Clock& clock() const = 0;
  virtual Ledger& ledger() = 0;
};

// For implementations.
Error peer_has_left(int peer, const Envelope& waiting_for);  // the peer ended in good order without sending this
std::shared_ptr<void> allocate_plain(int64_t bytes);         // private memory, aligned for vectors

}  // namespace cairn::comm
