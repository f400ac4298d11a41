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

// Shows the others that this process is alive, whatever its rank computes: a thread that only counts, and tells other machines.
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

// Watches the others' pulses while this rank waits. A pulse counts as missing only while somebody looked all the time: after a pause of
// our own (this rank computed, or the whole machine slept) the watch begins anew.
class LivenessMonitor {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  explicit LivenessMonitor(int ranks) : seen_(static_cast<size_t>(ranks)) {}

  static constexpr Nanoseconds kLimit = std::chrono::milliseconds(1800);     // silent for so long: stopped
  static constexpr Nanoseconds kFarLimit = std::chrono::milliseconds(2400);  // on another machine: the way there may be busy
  static constexpr Nanoseconds kPauseMax = std::chrono::milliseconds(500);

  bool due(Nanoseconds now) const { return now - last_look_ > std::chrono::milliseconds(20); }
  void begin(Nanoseconds now);  // of a round of looks
  // How long this rank's pulse has been missing.
  Nanoseconds silent(int rank, const StatusBoard& board, Nanoseconds now);

 private:
  struct Seen {
    uint64_t beat = 0;
    Nanoseconds at{};
  };
  std::vector<Seen> seen_;
  Nanoseconds last_look_ = Nanoseconds::min() / 2;
  bool anew_ = true;
};

// Who lives and what they do, as far as this rank can see: by shared memory on its machine, by heartbeats from others.
class PeerLiveness {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  PeerLiveness(const NetSetup& setup, std::shared_ptr<SharedSegment> segment);  // null: there is none to share

  void publish_operation(const Envelope& starting) { own_->publish_operation(starting); }
  std::optional<Envelope> last_started(int rank) const;
  Nanoseconds status_age(int rank) const;  // how old what last_started() says may be

  // For how long a peer's process has shown no life, where that is too long; looked at every now and then.
  bool due(Nanoseconds now) const { return watch_.due(now); }
  void begin_look(Nanoseconds now) { watch_.begin(now); }
  std::optional<Nanoseconds> stopped(int peer, Nanoseconds now);

 private:
  const StatusBoard* board(int rank) const;

  std::shared_ptr<SharedSegment> segment_;
  std::vector<int> places_;  // in the segment, by rank; -1: elsewhere
  std::unique_ptr<Heartbeat> elsewhere_;
  std::unique_ptr<StatusBoard> private_board_;  // where nothing is shared
  StatusBoard* own_;
  LivenessMonitor watch_;
  std::optional<HeartbeatThread> heartbeat_thread_;  // last: it refers to what is above
};

}  // namespace cairn::comm
