// Liveness: is a silent peer alive?
//
// A thread of every process increments a beat counter every 0.1 s, whatever its rank computes. Ranks of the same machine read the counter
// in shared memory, others get it by heartbeat datagrams. A waiting rank looks at all counters every 20 ms. A counter that stands still for
// 1.8 s (2.4 s on another machine) means that the process is stopped, frozen or cut off, and the peer is lost.
//
// The limit counts only time in which this rank kept looking: after a pause of its own of more than 0.5 s (it computed, was stopped, or the
// machine was suspended) the watch begins anew. A remote rank that was never heard from is not judged.
//
// Datagrams of strangers change no verdict. The kernel drops them (heartbeat.cpp); where it cannot, because someone copies real heartbeats,
// silence during such a flood does not count. Bytes that arrive on a peer's connection count as a sign of life as well.
#include "comm/net/liveness.h"

#include <algorithm>

namespace cairn::comm {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr auto kReadEvery = std::chrono::milliseconds(20);

}  // namespace

HeartbeatThread::HeartbeatThread(StatusBoard& own, Heartbeat* elsewhere)
    : thread_([this, &own, elsewhere] {
        const base::RealClock clock;
        std::chrono::nanoseconds due = clock.now();
        std::unique_lock guard(lock_);
        do {
          if (clock.now() >= due) {
            due = clock.now() + kInterval;
            own.beat.fetch_add(1, std::memory_order_relaxed);
            if (elsewhere) elsewhere->send(own);
          }
          if (elsewhere) elsewhere->receive();
        } while (!stop_.wait_for(guard, elsewhere ? kReadEvery : kInterval, [this] { return stopping_; }));
        own.beat.store(0, std::memory_order_relaxed);  // this rank has left: what it does now is not judged
      }) {}

HeartbeatThread::~HeartbeatThread() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void LivenessMonitor::begin(Nanoseconds now) {
  anew_ = now - last_look_ > kPauseMax;
  last_look_ = now;
}

LivenessMonitor::Nanoseconds LivenessMonitor::silent(int rank, const StatusBoard& board, Nanoseconds now) {
  Seen& seen = seen_[static_cast<size_t>(rank)];
  const uint64_t signs = board.beat.load(std::memory_order_relaxed) + heard_[static_cast<size_t>(rank)];
  if (anew_ || signs != seen.signs) seen = {signs, now};
  return now - seen.at;
}

PeerLiveness::PeerLiveness(const NetSetup& setup, std::shared_ptr<SharedSegment> segment)
    : segment_(std::move(segment)),
      places_(static_cast<size_t>(setup.size), -1),
      elsewhere_(setup.heartbeat_fd >= 0 ? std::make_unique<Heartbeat>(setup) : nullptr),
      private_board_(segment_ ? nullptr : std::make_unique<StatusBoard>()),
      own_(private_board_.get()),
      watch_(setup.size) {
  if (segment_) {
    int place = 0;
    for (const int rank : setup.neighbours()) places_[static_cast<size_t>(rank)] = place++;
    own_ = &segment_->board(places_[static_cast<size_t>(setup.rank)]);
  }
  own_->beat.fetch_add(1, std::memory_order_relaxed);  // at once: a process that stops before its first beat would never be missed
  if (elsewhere_) elsewhere_->send(*own_);
  heartbeat_thread_.emplace(*own_, elsewhere_.get());
}

const StatusBoard* PeerLiveness::board(int rank) const {
  const int place = places_[static_cast<size_t>(rank)];
  if (place >= 0) return &segment_->board(place);
  return elsewhere_ ? elsewhere_->board(rank) : nullptr;
}

std::optional<Envelope> PeerLiveness::last_started(int rank) const {
  const StatusBoard* seen = board(rank);
  return seen ? seen->read_operation() : std::nullopt;
}

std::chrono::nanoseconds PeerLiveness::status_age(int rank) const {
  return places_[static_cast<size_t>(rank)] < 0 && elsewhere_ ? elsewhere_->age(rank) : Nanoseconds(0);
}

std::optional<std::chrono::nanoseconds> PeerLiveness::stopped(int peer, Nanoseconds now) {
  const StatusBoard* seen = board(peer);
  const bool far = places_[static_cast<size_t>(peer)] < 0;
  // A remote rank that was never heard from is not judged: a firewall may drop all datagrams.
  if (!seen || (far && seen->beat.load(std::memory_order_relaxed) == 0)) return std::nullopt;
  Nanoseconds silent = watch_.silent(peer, *seen, now);
  if (far) silent = std::min(silent, elsewhere_->since_flood());
  return silent > (far ? LivenessMonitor::kFarLimit : LivenessMonitor::kLimit) ? std::optional(silent) : std::nullopt;
}

}  // namespace cairn::comm
