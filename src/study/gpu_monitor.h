#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"

namespace cairn::study {

// Samples the first GPU of this machine by NVML, twenty times a second: energy, memory, clock and load. Without NVML nothing is known.
class GpuMonitor {
 public:
  GpuMonitor();
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // Seconds on the clock that `between` uses.
  double now_s() const { return base::seconds(clock_.now()); }
  int64_t bytes_now() const;  // in use on the device, by all processes; 0: not known

  struct Span {
    double joules = 0;
    double clock_mhz = 0;  // mean clock of the multiprocessors
    double busy = 0;       // fraction of time with a kernel running, as NVML reports it over the last tenths of a second
    int64_t bytes_most = 0;
  };
  // The span between two times; nothing if it holds no samples.
  std::optional<Span> between(double from_s, double to_s) const;

 private:
  struct Parts;
  base::RealClock clock_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace cairn::study
