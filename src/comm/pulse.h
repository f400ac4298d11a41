#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/shared_segment.h"

namespace cairn::comm {

// Shows the others on this machine that this process is alive, whatever its rank computes: a thread that only counts.
class Pulse {
 public:
  explicit Pulse(Board& own);
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

 private:
  std::mutex lock_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

// Watches the others' pulses while this rank waits. A pulse counts as missing only while somebody looked all the time: after a pause of
// our own (this rank computed, or the whole machine slept) the watch begins anew.
class PulseWatch {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  explicit PulseWatch(int ranks) : seen_(static_cast<size_t>(ranks)) {}

  static constexpr Nanoseconds kLimit = std::chrono::milliseconds(1800);  // silent for so long: stopped
  static constexpr Nanoseconds kPauseMax = std::chrono::milliseconds(500);

  bool due(Nanoseconds now) const { return now - last_look_ > std::chrono::milliseconds(20); }
  void begin(Nanoseconds now);  // of a round of looks
  // How long this rank's pulse has been missing.
  Nanoseconds silent(int rank, const Board& board, Nanoseconds now);

 private:
  struct Seen {
    uint64_t beat = 0;
    Nanoseconds at{};
  };
  std::vector<Seen> seen_;
  Nanoseconds last_look_ = Nanoseconds::min() / 2;
  bool anew_ = true;
};

}  // namespace cairn::comm
