#include "study/job_schedule.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/text.h"

namespace cairn::study {

JobSchedule schedule_jobs(const std::vector<JobCost>& jobs, const std::vector<Island>& islands) {
  CAIRN_CHECK(!islands.empty(), "no island for {} jobs", jobs.size());
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return jobs[a].flops > jobs[b].flops; });
  JobSchedule placed{.jobs = std::vector<std::vector<size_t>>(islands.size())};
  std::vector<double> busy(islands.size(), 0);
  for (const size_t job : order) {
    size_t best = islands.size();
    const auto ends = [&](size_t island) { return busy[island] + jobs[job].flops / islands[island].speed; };
    for (size_t i = 0; i < islands.size(); ++i)
      if (islands[i].fits(jobs[job]) && (best == islands.size() || ends(i) < ends(best))) best = i;
    if (best == islands.size()) {
      int64_t most = 0;
      for (const Island& island : islands) most = std::max(most, island.bytes);
      base::fail_input("{} needs {} and no island has more than {}: give it a smaller size, or an island with more memory", jobs[job].name,
                       base::human_bytes(jobs[job].bytes), base::human_bytes(most));
    }
    busy[best] = ends(best);
    placed.jobs[best].push_back(job);
    placed.makespan = std::max(placed.makespan, busy[best]);
  }
  return placed;
}

}  // namespace cairn::study
