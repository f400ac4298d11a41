#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/net/heartbeat.h"
#include "comm/shm/segment.h"

namespace cairn::comm {

// A thread that increments this process's heartbeat counter every 0.1 s, whatever its rank computes, and sends it to other machines. It
// reads their heartbeats every 20 ms, a bounded number each time, so that no flood of datagrams delays its own.
class HeartbeatThread {
 public:
  HeartbeatThread(StatusBoard& own, Heartbeat* elsewhere);
  ~HeartbeatThread();
  HeartbeatThread(const HeartbeatThread&) = delete;
  HeartbeatThread& operator=(const HeartbeatThread&) = delete;

 private:
  std::mutex lock_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

// Watches the heartbeat counters of the peers while this rank waits. A counter counts as standing still only while this rank kept
// watching: after a pause of its own (it computed, or the machine was suspended) the watch begins anew.
class LivenessMonitor {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  explicit LivenessMonitor(int ranks) : seen_(static_cast<size_t>(ranks)), heard_(static_cast<size_t>(ranks)) {}

  static constexpr Nanoseconds kLimit = std::chrono::milliseconds(1800);     // no beat for this long: the process is stopped
  static constexpr Nanoseconds kFarLimit = std::chrono::milliseconds(2400);  // on another machine, whose network may be busy
  static constexpr Nanoseconds kPauseMax = std::chrono::milliseconds(500);

  bool due(Nanoseconds now) const { return now - last_look_ > std::chrono::milliseconds(20); }
  void begin(Nanoseconds now);                                   // starts one look at all peers
  void heard(int rank) { ++heard_[static_cast<size_t>(rank)]; }  // bytes of this rank arrived: a sign of life too
  // How long this rank's counter has stood still.
  Nanoseconds silent(int rank, const StatusBoard& board, Nanoseconds now);

 private:
  struct Seen {
    uint64_t signs = 0;  // its counter, and how often something was heard of it
    Nanoseconds at{};
  };
  std::vector<Seen> seen_;
  std::vector<uint64_t> heard_;
  Nanoseconds last_look_ = Nanoseconds::min() / 2;
  bool anew_ = true;
};

// Which peers are alive and what they do: read from shared memory on this machine, from heartbeats of other machines.
class PeerLiveness {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  PeerLiveness(const NetSetup& setup, std::shared_ptr<SharedSegment> segment);  // null: no memory is shared

  void publish_operation(const Envelope& starting) { own_->publish_operation(starting); }
  std::optional<Envelope> last_started(int rank) const;
  Nanoseconds status_age(int rank) const;  // an upper bound on the age of what last_started() says

  // How long a peer has shown no life, where that is beyond the limit. begin_look() opens a round of looks whenever one is due().
  bool due(Nanoseconds now) const { return watch_.due(now); }
  void begin_look(Nanoseconds now) { watch_.begin(now); }
  std::optional<Nanoseconds> stopped(int peer, Nanoseconds now);
  void heard(int peer) { watch_.heard(peer); }  // an authenticated byte of this peer has arrived

 private:
  const StatusBoard* board(int rank) const;

  std::shared_ptr<SharedSegment> segment_;
  std::vector<int> places_;  // by rank: its position in the segment; -1: on another machine
  std::unique_ptr<Heartbeat> elsewhere_;
  std::unique_ptr<StatusBoard> private_board_;  // this rank's, where no memory is shared
  StatusBoard* own_;
  LivenessMonitor watch_;
  std::optional<HeartbeatThread> heartbeat_thread_;  // last: it refers to the members above
};

}  // namespace cairn::comm
