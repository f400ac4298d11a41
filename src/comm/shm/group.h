// Collectives in shared memory: ranks of one machine read each other's buffers in place, without messages.
//
// Every rank has one slot per operation in its own part of the segment, with a stamp = (sequence number, phase) that only grows. To take
// part in operation s, a rank
//   1. waits until its slot is free: all ranks have stamped the last phase of the slot's previous operation;
//   2. writes the regions that others may read and its signature, then stamps (s, 1);
//   3. alternates: waits until all stamps are at least (s, p), reads what the others published for phase p, stamps (s, p + 1);
//   4. stamps (s, kLastPhase) when it reads nothing more, and waits for the others only if they may still read its own buffers.
// Stamps are stored with release and loaded with acquire, so that the data they announce is visible. A rank compares the signature of each
// slot with its own once, and reports a mismatch like one of messages.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "comm/collectives/exchange.h"
#include "comm/inbox.h"
#include "comm/shm/arena.h"
#include "comm/shm/link.h"
#include "comm/shm/segment.h"
#include "comm/shm/slots.h"

namespace cairn::comm {

class ShmGroups;

// One rank's view of a group whose ranks all share memory.
class ShmGroup {
 public:
  ShmGroup(ShmGroups& groups, std::vector<int> ranks, uint64_t group);

  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return me_; }
  const std::vector<int>& ranks() const { return ranks_; }
  // Looks up the slots of ranks that are not known yet. Returns whether all are known.
  bool complete();
  bool refused() const { return refused_; }  // once complete: some rank has no slots, so that all use messages
  bool knows(int position) const { return slots_[position] != nullptr; }
  ShmSlot& slot(int position, uint64_t sequence) const { return slots_[position]->slots[sequence % kShmSlotsInFlight]; }
  // Reserves the slot of this operation; operations claim in the order of their start. Returns the stamp at which the slot is free.
  uint64_t claim(uint64_t sequence);
  // Whether all ranks have stamped the last phase of this operation.
  bool over(uint64_t sequence) const;
  ShmGroups& groups() const { return groups_; }

 private:
  ShmGroups& groups_;
  std::vector<int> ranks_;  // world ranks
  uint64_t group_;
  int me_;
  std::vector<ShmSlots*> slots_;  // by position; null: not known
  bool refused_ = false;
  bool complete_ = false;
  std::array<uint64_t, kShmSlotsInFlight> claimed_ = {};  // the final stamp of the slot's latest operation; 0: none yet
};

// What a rank waits for: that all others have reached a phase of one operation.
struct ShmCondition {
  ShmGroup* group = nullptr;
  const Envelope* envelope = nullptr;  // of the operation; outlives this
  uint32_t phase = 0;                  // 0: wait for everybody's slots, and for this one to be free
  uint64_t free_at = 0;                // phase 0: the stamp at which the slot is free
  uint64_t* matched = nullptr;         // bit i: position i was seen in the same operation (kept by the Exchange)

  bool reached(int position) const;
  bool ready() const;                // the condition holds
  bool changed() const;              // it holds, or a rank has arrived whose signature is not checked yet
  std::vector<int> missing() const;  // world ranks that have not reached it
  uint64_t sequence() const { return envelope->sequence; }
};

struct ShmWait final : Transfer {
  explicit ShmWait(const ShmCondition& what) : condition(what) {}
  std::vector<int> awaited() const override { return done ? std::vector<int>() : condition.missing(); }
  ShmCondition condition;
};

// All of one rank's shared-memory groups, and the conditions that its operations wait for.
class ShmGroups {
 public:
  ShmGroups(const SharedSegment& segment, std::vector<int> ranks, int place, bool oversubscribed, Arena& own, Inbox& inbox,
            LinkOwner& owner);

  // Null: the ranks do not all share memory, or there are too many of them.
  ShmGroup* of(const std::vector<int>& ranks, uint64_t group);
  bool waits() const;    // a condition has changed
  bool progress();       // completes the waits whose condition holds; returns whether any did
  void close(int rank);  // the rank has left: waits for it fail
  // Polls for a moment. Returns whether the condition holds and all signatures match.
  bool spin_until(const ShmCondition& what) const;
  // Completes the wait now, or keeps it until its condition holds.
  void wait(const std::shared_ptr<ShmWait>& one);
  void forget(const ShmWait& one);

  ShmSlots* open_slots(uint64_t group);  // allocates this rank's; null: there is no room
  std::optional<int64_t> slots_of(int rank, uint64_t group) const;
  std::span<std::byte> arena_of(int rank) const { return segment_.arena(place_of(rank)); }
  // Staging memory in this rank's arena, valid until all ranks have finished this operation; null: none is free now.
  std::byte* borrow(int64_t bytes, const ShmGroup& group, uint64_t sequence);
  bool is_own(int rank) const { return place_of(rank) == place_; }
  Arena& own() { return own_; }
  void wake(int rank);  // if it sleeps
  LinkOwner& owner() { return owner_; }

 private:
  int place_of(int rank) const;
  int mismatched(const ShmCondition& what) const;  // the position of a rank with another signature; -1: none
  void fail_mismatched(const std::shared_ptr<ShmWait>& one, int position);
  bool settle(const std::shared_ptr<ShmWait>& one);  // returns whether it completed or failed

  const SharedSegment& segment_;
  std::vector<int> ranks_;  // by position in the segment
  int place_;
  bool oversubscribed_;
  Arena& own_;
  Inbox& inbox_;
  LinkOwner& owner_;
  std::map<uint64_t, std::unique_ptr<ShmGroup>> groups_;  // by group id
  std::vector<std::shared_ptr<ShmWait>> waiting_;
  std::vector<bool> closed_;  // by rank

  // The staging memory is a ring: each use takes the next bytes, because a cache line that another core has just read is slow to write.
  struct Borrowed {
    int64_t begin, end;
    const ShmGroup* group;
    uint64_t sequence;
  };
  std::byte* ring_ = nullptr;
  int64_t ring_at_ = 0;
  std::deque<Borrowed> borrowed_;  // oldest first
};

// One operation of a shared-memory group, as one rank runs it. All ranks pass through the phases 1, 2, ..., kLastPhase.
class ShmCollective {
 public:
  struct Part {  // bytes of this rank that others may read
    const void* data = nullptr;
    int64_t bytes = 0;
  };

  ShmCollective(Exchange& exchange, ShmGroup& group);
  ~ShmCollective();
  ShmCollective(const ShmCollective&) = delete;
  ShmCollective& operator=(const ShmCollective&) = delete;

  Completion slots_ready();  // the first wait of every operation
  bool available() const { return !group_.refused(); }

  // Declares what each reader may read (one part: the same for all), in chunks of `chunk` bytes. Parts outside of this rank's arena are
  // staged in it, and so are short ones, because a copy takes less time than waiting for all readers.
  // `copied`: always stage, because the original changes before all have read it.
  void offer(std::span<const Part> parts, int64_t chunk, bool copied = false);
  bool staged() const { return buffer_stride_ != 0; }  // double-buffered: chunk k + 2 overwrites chunk k
  void publish_chunk(int64_t k);                       // stages chunk k, unless it is read in place
  std::byte* place(int reader, int64_t k) const;       // where readers find it

  void enter_phase(uint32_t phase);
  Completion wait_all(uint32_t phase);  // done when all ranks have entered it
  // After phase 1: no rank stages chunk by chunk, so that everything can be read at once.
  bool all_published() const;
  void set_chunk(int64_t chunk) { chunk_ = chunk; }  // changes the chunk length of regions that are read in place
  // Chunk k of the `bytes` that `peer` offers to `reader`. Throws if the peer offers another number of bytes.
  const std::byte* peer_chunk(int peer, int reader, int64_t bytes, int64_t k) const;
  // Enters the last phase. Done when nobody reads this rank's buffers any more.
  Completion finish();
  void book(int peer, int64_t bytes) const;

 private:
  struct Offered {
    const std::byte* data;
    int64_t bytes;
    std::byte* place;  // of the first chunk, where readers find it
  };
  Completion until(uint32_t phase);

  Exchange& exchange_;
  ShmGroup& group_;
  uint64_t sequence_;
  uint64_t free_at_;
  int64_t chunk_ = 1;
  int64_t buffer_stride_ = 0;
  bool lasting_ = true;  // what was offered stays valid without waiting for its readers
  std::array<Offered, kShmRanksMax> offered_;
  int offers_ = 0;
  void* stage_ = nullptr;
};

}  // namespace cairn::comm
