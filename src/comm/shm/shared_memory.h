#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/inbox.h"
#include "comm/shm/arena.h"
#include "comm/shm/group.h"
#include "comm/shm/link.h"
#include "comm/shm/segment.h"

namespace cairn::comm {

// One rank's end of the memory that the ranks of a machine share: a link to each peer, the shared-memory groups, the arena.
class SharedMemory {
 public:
  // `ranks`: the ranks of this machine, by position in the segment.
  SharedMemory(std::shared_ptr<SharedSegment> segment, const std::vector<int>& ranks, int rank, Inbox& inbox, LinkOwner& owner);

  SharedLink* link(int peer) const {  // null: this rank itself, or a rank of another machine
    return static_cast<size_t>(peer) < by_rank_.size() ? by_rank_[static_cast<size_t>(peer)] : nullptr;
  }
  ShmGroups& groups() { return *groups_; }
  bool waits() const;                                      // something can be read
  bool blocked() const;                                    // an outgoing message waits for room
  bool oversubscribed() const { return oversubscribed_; }  // fewer cores than ranks: spinning keeps the others from running
  std::shared_ptr<void> allocate(int64_t bytes);           // from the arena; null: it is full

  // Between these two calls the rank may sleep: a sender wakes it. False: something has arrived already.
  bool fall_asleep();
  void wake_up() { own_board_.asleep.store(0, std::memory_order_relaxed); }

 private:
  bool oversubscribed_;
  std::shared_ptr<SharedSegment> segment_;
  std::shared_ptr<Arena> arena_;
  StatusBoard& own_board_;
  std::vector<std::unique_ptr<SharedLink>> links_;  // by position; null to itself
  std::vector<SharedLink*> by_rank_;
  std::unique_ptr<ShmGroups> groups_;
};

}  // namespace cairn::comm
