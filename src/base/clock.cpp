#include "base/clock.h"

#include <string>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "base/process.h"

namespace cairn::base {

RealClock::RealClock() : start_(std::chrono::steady_clock::now()) {}
std::chrono::nanoseconds RealClock::now() const { return std::chrono::steady_clock::now() - start_; }

std::chrono::nanoseconds VirtualClock::now() const { return std::chrono::nanoseconds(now_ns_.load(std::memory_order_acquire)); }

void VirtualClock::advance_to(std::chrono::nanoseconds time) {
  int64_t seen = now_ns_.load(std::memory_order_relaxed);
  while (seen < time.count() && !now_ns_.compare_exchange_weak(seen, time.count(), std::memory_order_acq_rel)) {
  }
}

void VirtualClock::advance_by(std::chrono::nanoseconds step) {
  if (step.count() > 0) now_ns_.fetch_add(step.count(), std::memory_order_acq_rel);
}

double seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

double wall_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

double process_age() {
  constexpr size_t kStart = 22 - kFirstStatField;  // in clock ticks since the machine started
  const std::vector<std::string> stat = process_stat(::getpid());
  timespec now{};
  if (stat.size() <= kStart || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double started = std::stod(stat[kStart]) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - started;
}

}  // namespace cairn::base
