#include "comm/shm/shared_memory.h"

#include <algorithm>
#include <sched.h>

namespace cairn::comm {
namespace {

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int place_of(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

SharedMemory::SharedMemory(std::shared_ptr<SharedSegment> segment, const std::vector<int>& ranks, int rank, Inbox& inbox, LinkOwner& owner)
    : oversubscribed_(static_cast<int>(ranks.size()) > cores()),
      segment_(std::move(segment)),
      own_board_(segment_->board(place_of(rank, ranks))) {
  const int own = place_of(rank, ranks);
  const std::span<std::byte> memory = segment_->arena(own);
  arena_ = std::make_shared<Arena>(memory.data(), static_cast<int64_t>(memory.size()));
  by_rank_.resize(static_cast<size_t>(*std::max_element(ranks.begin(), ranks.end())) + 1);
  for (int place = 0; place < static_cast<int>(ranks.size()); ++place) {
    const int peer = ranks[static_cast<size_t>(place)];
    links_.push_back(place == own ? nullptr : std::make_unique<SharedLink>(*segment_, own, place, peer, *arena_, inbox, owner));
    by_rank_[static_cast<size_t>(peer)] = links_.back().get();
  }
  groups_ = std::make_unique<ShmGroups>(*segment_, ranks, own, oversubscribed_, *arena_, inbox, owner);
}

bool SharedMemory::waits() const {
  return groups_->waits() || std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link && link->something_to_read(); });
}

bool SharedMemory::blocked() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link && link->blocked(); });
}

std::shared_ptr<void> SharedMemory::allocate(int64_t bytes) {
  void* piece = arena_->allocate(bytes);
  if (!piece) return nullptr;
  return {piece, [segment = segment_, arena = arena_](void* memory) { arena->free(memory); }};
}

bool SharedMemory::fall_asleep() {
  own_board_.asleep.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // store `asleep` before the last look; senders publish first and then load `asleep`
  return !waits();
}

}  // namespace cairn::comm
