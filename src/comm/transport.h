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
class ShmGroup;

// A rank that is gone, and why.
struct LostPeer {
  int rank = -1;     // who is gone
  int culprit = -1;  // who caused it: itself, or the rank whose loss made it give up
  std::string reason;
  bool tainted = false;  // what came from it last may be wrong
};

enum class PullMode : uint8_t { replace, add };

// How a collective cuts long messages, so that moving and computing overlap. The same on all ranks of a group.
struct Chunking {
  int64_t bytes = 512 << 10;
  int64_t in_flight = 4;
};

// What moves bytes between ranks: point-to-point messages, and regions that peers may read. Collectives are written once over this.
//
// One thread uses a transport. Nothing moves but inside drive and poll (a send may leave at once). Memory handed in must stay until the
// completion is done or destroyed: destroying one that is not done cancels it. Messages are matched by sender, group, sequence and step.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) = 0;
  virtual Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) = 0;
  // As recv, but the bytes may be read where the transport has them (in the sender's own memory, where both share it): at view() once it
  // is done, for as long as the completion lives.
  virtual Completion recv_view(int from, const Envelope& envelope, int64_t bytes) = 0;

  // Lets peers read this region under the envelope's (group, sequence, step) for as long as the completion lives. It is never done.
  virtual Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) = 0;
  // Reads from a region that the peer exposes, now or later; booked at the peer.
  virtual Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, PullMode mode, Dtype dtype) = 0;
  // Where these ranks may meet without messages, having memory in common; null where they may not. The same on all of them.
  virtual ShmGroup* shm_group(const std::vector<int>& /*ranks*/, uint64_t /*group*/) { return nullptr; }
  virtual Chunking chunking(const std::vector<int>& /*ranks*/) const { return {}; }
  virtual LinkFacts link_facts(const std::vector<int>& /*ranks*/) const { return {}; }  // the same on all of these ranks
  // Done at this time of clock().
  virtual Completion timer(std::chrono::nanoseconds at) = 0;

  virtual void cancel(Transfer& transfer) = 0;

  // Makes progress until `done` says true or clock() reaches `until`; which of them is the answer. `done` is asked after each change.
  // `doing` says what this rank waits for, should others have to be told.
  virtual bool drive(const std::function<bool()>& done, std::chrono::nanoseconds until, const std::string& doing) = 0;
  virtual void poll() = 0;
  // As drive, for about a millisecond at most and without a word: most waits are that short. False where it would be no use.
  virtual bool spin(const std::function<bool()>& /*done*/) { return false; }
  // What this rank does from now on, for those who will ask why it is late.
  virtual void publish_operation(const Envelope& /*starting*/) {}
  virtual std::optional<Envelope> last_started(int /*rank*/) const {
    return std::nullopt;
  }                                                                               // what that rank started last, where it can be seen
  virtual std::chrono::nanoseconds status_age(int /*rank*/) const { return {}; }  // how old that may be

  virtual const std::vector<LostPeer>& lost_peers() const = 0;
  virtual bool left(int /*rank*/) const { return false; }  // that rank has ended in good order, and all it sent has come
  virtual void fail(const std::string& reason, int culprit) = 0;

  // Told of each message that came before anybody asked for it, or that is not what was asked for; the world checks that it fits what this
  // rank did or does. It may be told of one twice.
  virtual void on_early(std::function<void(int from, const Envelope&)> tell) = 0;

  // What the devices of these ranks do among themselves; null: nothing, so that their tensors travel through the host. `group` is the
  // number of the group, the same on all of them.
  virtual std::shared_ptr<DeviceGroup> device_group(const std::vector<int>& /*ranks*/, uint64_t /*group*/) { return nullptr; }

  virtual std::shared_ptr<void> allocate(int64_t bytes) = 0;
  virtual const base::Clock& clock() const = 0;
  virtual Ledger& ledger() = 0;
};

// For those that implement one.
Error peer_has_left(int peer, const Envelope& waiting_for);  // it ended in good order, without sending this
std::shared_ptr<void> allocate_plain(int64_t bytes);         // private memory, aligned for vectors

}  // namespace cairn::comm
