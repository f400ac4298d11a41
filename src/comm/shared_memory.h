#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/arena.h"
#include "comm/inbox.h"
#include "comm/pulse.h"
#include "comm/shared_link.h"
#include "comm/shared_segment.h"

namespace cairn::comm {

// One rank's part in the memory that the ranks of a machine share.
class SharedMemory {
 public:
  SharedMemory(int fd, int rank, int size, Inbox& inbox, LinkOwner& owner);  // takes the file over

  SharedLink* link(int peer) { return links_[static_cast<size_t>(peer)].get(); }  // null: itself
  bool waits() const;                                                             // something is there to be read
  bool blocked() const;                                                           // something waits for room
  bool crowded() const { return crowded_; }       // fewer cores than ranks: others must run for anything to come
  std::shared_ptr<void> allocate(int64_t bytes);  // from the arena; null where that has no room

  void show(const Envelope& starting) { segment_->board(rank_).show(starting); }
  std::optional<Envelope> doing(int rank) const { return segment_->board(rank).look(); }

  // Between these two the rank may sleep: whoever sends to it wakes it. False: something came in the meantime.
  bool fall_asleep();
  void wake_up() { segment_->board(rank_).asleep.store(0, std::memory_order_relaxed); }

  // For how long a peer's process has shown no life, where that is too long; looked at every now and then.
  bool pulses_due(std::chrono::nanoseconds now) const { return watch_.due(now); }
  void begin_look(std::chrono::nanoseconds now) { watch_.begin(now); }
  std::optional<std::chrono::nanoseconds> stopped(int peer, std::chrono::nanoseconds now);

 private:
  int rank_;
  bool crowded_;
  std::shared_ptr<SharedSegment> segment_;
  std::shared_ptr<Arena> arena_;
  std::vector<std::unique_ptr<SharedLink>> links_;  // by peer; none to itself
  Pulse pulse_;
  PulseWatch watch_;
};

}  // namespace cairn::comm
