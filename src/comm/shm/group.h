// Collectives among ranks of one machine without messages: each shows where its bytes lie and reads those of the others in place.
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

// One rank's side of the meetings of one group.
class ShmGroup {
 public:
  ShmGroup(ShmGroups& groups, std::vector<int> ranks, uint64_t group);

  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return me_; }
  const std::vector<int>& ranks() const { return ranks_; }
  // Looks for the desks that are not known yet; whether none is missing any more.
  bool complete();
  bool refused() const { return refused_; }  // of a complete one: some rank has no desk, so that nobody meets
  bool knows(int position) const { return slots_[position] != nullptr; }
  ShmSlot& slot(int position, uint64_t sequence) const { return slots_[position]->slots[sequence % kShmSlotsInFlight]; }
  // Takes the slot of this operation, in the order in which operations begin: free once all have come to this stamp there.
  uint64_t claim(uint64_t sequence);
  // Whether this operation is over for all of them.
  bool over(uint64_t sequence) const;
  ShmGroups& groups() const { return groups_; }

 private:
  ShmGroups& groups_;
  std::vector<int> ranks_;  // the world's numbers
  uint64_t group_;
  int me_;
  std::vector<ShmSlots*> slots_;  // by position; null: not known
  bool refused_ = false;
  bool complete_ = false;
  std::array<uint64_t, kShmSlotsInFlight> claimed_ = {};  // the last stamp of the slot's last operation; 0: none yet
};

// What a rank waits for at a meeting: that all others have come so far in one operation.
struct ShmCondition {
  ShmGroup* group = nullptr;
  const Envelope* envelope = nullptr;  // the operation's, which outlives this
  uint32_t phase = 0;                  // 0: for desks and a free slot
  uint64_t free_at = 0;                // of a slot: the stamp of its last user's end
  uint64_t* matched = nullptr;         // the exchange's: which positions were seen to be in the same operation, as bits

  bool reached(int position) const;
  bool ready() const;                // all that it waits for is there
  bool changed() const;              // or somebody new has come
  std::vector<int> missing() const;  // the world's numbers of those who have not
  uint64_t sequence() const { return envelope->sequence; }
};

struct ShmWait final : Transfer {
  explicit ShmWait(const ShmCondition& what) : condition(what) {}
  std::vector<int> awaited() const override { return done ? std::vector<int>() : condition.missing(); }
  ShmCondition condition;
};

// All of one rank's meetings, and who waits in them.
class ShmGroups {
 public:
  ShmGroups(const SharedSegment& segment, std::vector<int> ranks, int place, bool crowded, Arena& own, Inbox& inbox, LinkOwner& owner);

  // Null: they do not all share memory, or are too many to meet.
  ShmGroup* of(const std::vector<int>& ranks, uint64_t group);
  bool waits() const;    // for something that has come
  bool progress();       // lets those go on for whom it has; whether there were any
  void close(int rank);  // it has ended: those who wait for it fail
  // Whether it is there already, or comes while one looks for a moment.
  bool spin_until(const ShmCondition& what) const;
  // Done, or kept until it is.
  void wait(const std::shared_ptr<ShmWait>& one);
  void forget(const ShmWait& one);

  ShmSlots* open_slots(uint64_t group);  // this rank's; null: there is no room
  std::optional<int64_t> slots_of(int rank, uint64_t group) const;
  std::span<std::byte> arena_of(int rank) const { return segment_.arena(place_of(rank)); }
  // Memory that others see, for as long as any of them reads what this operation put there; null: there is none now.
  std::byte* borrow(int64_t bytes, const ShmGroup& group, uint64_t sequence);
  bool is_own(int rank) const { return place_of(rank) == place_; }
  Arena& own() { return own_; }
  void wake(int rank);  // where it sleeps
  LinkOwner& owner() { return owner_; }

 private:
  int place_of(int rank) const;
  int mismatched(const ShmCondition& what) const;  // the position of one who is in another operation; -1: nobody
  void fail_mismatched(const std::shared_ptr<ShmWait>& one, int position);
  bool settle(const std::shared_ptr<ShmWait>& one);  // whether it is done

  const SharedSegment& segment_;
  std::vector<int> ranks_;  // by place
  int place_;
  bool crowded_;
  Arena& own_;
  Inbox& inbox_;
  LinkOwner& owner_;
  std::map<uint64_t, std::unique_ptr<ShmGroup>> groups_;  // by group
  std::vector<std::shared_ptr<ShmWait>> waiting_;
  std::vector<bool> closed_;  // by rank

  // Where what others cannot see is copied to: a little further each time, because memory that another core has just read is slow to write.
  struct Borrowed {
    int64_t begin, end;
    const ShmGroup* group;
    uint64_t sequence;
  };
  std::byte* ring_ = nullptr;
  int64_t ring_at_ = 0;
  std::deque<Borrowed> borrowed_;  // oldest first
};

// One operation at a meeting, from the side of one rank. All of its ranks go through the same phases: 1, 2, ..., kLastPhase.
class ShmCollective {
 public:
  struct Part {  // what others may read of this rank's
    const void* data = nullptr;
    int64_t bytes = 0;
  };

  ShmCollective(Exchange& exchange, ShmGroup& group);
  ~ShmCollective();
  ShmCollective(const ShmCollective&) = delete;
  ShmCollective& operator=(const ShmCollective&) = delete;

  Completion slots_ready();  // first of all
  bool available() const { return !group_.refused(); }

  // What each reader (or all, where there is one part) may read, in chunks of so many bytes; it is copied where the others could not see
  // it, or is so short that this takes less time than to wait until they have.
  // `copied`: in any case, since the original will change before all have read it.
  void offer(std::span<const Part> parts, int64_t chunk, bool copied = false);
  bool staged() const { return buffer_stride_ != 0; }  // a chunk's place is used again for the next but one
  void publish_chunk(int64_t k);                       // copies chunk k where it is read, if it does not lie there
  std::byte* place(int reader, int64_t k) const;       // where it lies

  void enter_phase(uint32_t phase);
  Completion wait_all(uint32_t phase);  // until all others have reached it
  // After phase 1: whether all that anybody offers lies where it is read already, so that nobody has to wait for a chunk to be put.
  bool all_published() const;
  void set_chunk(int64_t chunk) { chunk_ = chunk; }  // where it is: chunks of another length from now on
  // Where chunk k lies of what that peer offers to `reader`, of `bytes` in all.
  const std::byte* peer_chunk(int peer, int reader, int64_t bytes, int64_t k) const;
  // The last phase; until nobody reads here any more.
  Completion finish();
  void book(int peer, int64_t bytes) const;

 private:
  struct Offered {
    const std::byte* data;
    int64_t bytes;
    std::byte* place;  // of the first chunk, as others see it
  };
  Completion until(uint32_t phase);

  Exchange& exchange_;
  ShmGroup& group_;
  uint64_t sequence_;
  uint64_t free_at_;
  int64_t chunk_ = 1;
  int64_t buffer_stride_ = 0;
  bool lasting_ = true;  // what was offered stays as long as anybody reads it
  std::array<Offered, kShmRanksMax> offered_;
  int offers_ = 0;
  void* stage_ = nullptr;
};

}  // namespace cairn::comm
