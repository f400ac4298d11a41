// CPU seconds of this process, of all its threads: what work costs, whatever runs beside it.
#pragma once
#include <ctime>

namespace cairn::study {

inline double process_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace cairn::study
