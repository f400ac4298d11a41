// Schedules independent jobs on islands of different speed and memory.
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
  std::vector<std::vector<size_t>> jobs = {};  // indices of jobs by island, in the order they run
  double makespan = 0;                         // end of the last job, in units of the speeds
};

// LPT (longest processing time first): takes jobs in order of decreasing cost and puts each where it ends soonest. On islands of equal
// speed the makespan is at most 4/3 of the optimum (Graham 1969). Refuses a job that fits on no island.
JobSchedule schedule_jobs(const std::vector<JobCost>& jobs, const std::vector<Island>& islands);

}  // namespace cairn::study
