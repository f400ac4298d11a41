#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace cairn::base {

// What time it is for those who schedule and measure. Passed in, so that tests and simulated networks own the time.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::chrono::nanoseconds now() const = 0;  // since the clock was made; never goes back
};

// The steady time of this machine.
class RealClock final : public Clock {
 public:
  RealClock();
  std::chrono::nanoseconds now() const override;

 private:
  std::chrono::steady_clock::time_point start_;
};

// Time that stands still until its owner moves it. Any thread may read it.
class VirtualClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override;
  void advance_to(std::chrono::nanoseconds time);  // ignored where that would go back
  void advance_by(std::chrono::nanoseconds step);

 private:
  std::atomic<int64_t> now_ns_{0};
};

double seconds(std::chrono::nanoseconds duration);

// Unix time in seconds, for what people and other programs read: log lines, event files. Nothing is scheduled by it.
double wall_time();

// Seconds since the system started this process; 0 where the system does not say.
double process_age();

}  // namespace cairn::base
