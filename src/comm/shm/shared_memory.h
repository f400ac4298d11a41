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

// One rank's part in the memory that the ranks of a machine share.
class SharedMemory {
 public:
  // ranks: those of this machine, by their places in the segment.
  SharedMemory(std::shared_ptr<SharedSegment> segment, const std::vector<int>& ranks, int rank, Inbox& inbox, LinkOwner& owner);

  SharedLink* link(int peer) const {  // null: itself, or on another machine
    return static_cast<size_t>(peer) < by_rank_.size() ? by_rank_[static_cast<size_t>(peer)] : nullptr;
  }
  ShmGroups& groups() { return *groups_; }
  bool waits() const;                             // something is there to be read
  bool blocked() const;                           // something waits for room
  bool crowded() const { return crowded_; }       // fewer cores than ranks: others must run for anything to come
  std::shared_ptr<void> allocate(int64_t bytes);  // from the arena; null where that has no room

  // Between these two the rank may sleep: whoever sends to it wakes it. False: something came in the meantime.
  bool fall_asleep();
  void wake_up() { own_board_.asleep.store(0, std::memory_order_relaxed); }

 private:
  bool crowded_;
  std::shared_ptr<SharedSegment> segment_;
  std::shared_ptr<Arena> arena_;
  StatusBoard& own_board_;
  std::vector<std::unique_ptr<SharedLink>> links_;  // by place; none to itself
  std::vector<SharedLink*> by_rank_;
  std::unique_ptr<ShmGroups> groups_;
};

}  // namespace cairn::comm
