#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace cairn::base {

// The time by which code schedules and measures. It is passed in, so that tests and simulated networks control it. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::chrono::nanoseconds now() const = 0;  // since the clock was made; never decreases
};

// The monotonic clock of this machine.
class RealClock final : public Clock {
 public:
  RealClock();
  std::chrono::nanoseconds now() const override;

 private:
  std::chrono::steady_clock::time_point start_;
};

// A clock that stands still until its owner advances it.
class VirtualClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override;
  void advance_to(std::chrono::nanoseconds time);  // ignored if `time` has passed already
  void advance_by(std::chrono::nanoseconds step);

 private:
  std::atomic<int64_t> now_ns_{0};
};

double seconds(std::chrono::nanoseconds duration);

// Unix time in seconds, for log lines and event files. Never used for scheduling.
double wall_time();

// Seconds since the system started this process; 0 where the system does not say.
double process_age();

}  // namespace cairn::base
