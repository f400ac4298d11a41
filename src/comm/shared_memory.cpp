#include "comm/shared_memory.h"

#include <algorithm>
#include <sched.h>
#include <unistd.h>

namespace cairn::comm {
namespace {

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

std::shared_ptr<SharedSegment> join(int fd, int size) {
  auto segment = std::make_shared<SharedSegment>(fd, size);
  ::close(fd);
  return segment;
}

}  // namespace

SharedMemory::SharedMemory(int fd, int rank, int size, Inbox& inbox, LinkOwner& owner)
    : rank_(rank),
      crowded_(size > cores()),
      segment_(join(fd, size)),
      arena_(std::make_shared<Arena>(segment_->arena(rank).data(), static_cast<int64_t>(segment_->arena(rank).size()))),
      pulse_(segment_->board(rank)),
      watch_(size) {
  for (int peer = 0; peer < size; ++peer) {
    links_.push_back(peer == rank ? nullptr : std::make_unique<SharedLink>(*segment_, rank, peer, *arena_, inbox, owner));
  }
}

bool SharedMemory::waits() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link && link->something_to_read(); });
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
  segment_->board(rank_).asleep.store(1, std::memory_order_seq_cst);  // before the last look, as senders look the other way round
  return !waits();
}

std::optional<std::chrono::nanoseconds> SharedMemory::stopped(int peer, std::chrono::nanoseconds now) {
  const auto silent = watch_.silent(peer, segment_->board(peer), now);
  return silent > PulseWatch::kLimit ? std::optional(silent) : std::nullopt;
}

}  // namespace cairn::comm
