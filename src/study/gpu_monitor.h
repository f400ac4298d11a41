#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"

namespace cairn::study {

// Looks at the first GPU of this machine from outside while others use it: energy, memory, clock and load, twenty times a second. NVML is
// asked where the driver brought it; elsewhere nothing is known.
class GpuMonitor {
 public:
  GpuMonitor();
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // The clock that all times here are on.
  double now_s() const { return base::seconds(clock_.now()); }
  int64_t bytes_now() const;  // in use on the device, by everybody; 0: not known

  struct Span {
    double joules = 0;
    double clock_mhz = 0;  // of the multiprocessors, the mean
    double busy = 0;       // share of the time in which something ran, as NVML has it: each sample is of the last tenths of a second
    int64_t bytes_most = 0;
  };
  // From one time to another, of which samples are known; nothing where they are not.
  std::optional<Span> between(double from_s, double to_s) const;

 private:
  struct Parts;
  base::RealClock clock_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace cairn::study
