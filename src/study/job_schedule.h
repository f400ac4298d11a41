// Independent jobs onto islands of unlike machines.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::study {

struct JobCost {
  std::string name;
  double flops = 0;
  int64_t bytes = 0;  // of memory
};
struct Island {
  std::string name;
  double speed = 1;   // FLOPs a second, in any unit
  int64_t bytes = 0;  // 0: enough for any job
  bool fits(const JobCost& job) const { return bytes == 0 || job.bytes <= bytes; }
};

struct JobSchedule {
  std::vector<std::vector<size_t>> jobs = {};  // of each island, in the order they are run
  double makespan = 0;                         // when the last ends, in units of the speeds
};

// Longest first: the job that takes most goes where it would end soonest, then the next. At most 4/3 of the best there is, on islands of
// one speed (Graham 1969). A job that fits nowhere is refused, naming what it needs and what there is.
JobSchedule schedule_jobs(const std::vector<JobCost>& jobs, const std::vector<Island>& islands);

}  // namespace cairn::study
