// Jobs that know nothing of each other, each a chain of runs of the program itself, on islands that run one at a time.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "study/job_schedule.h"

namespace cairn::base {
class Log;
class Stop;
}  // namespace cairn::base

namespace cairn::study {

// One `cairn train`, a process of its own.
struct ExpertRun {
  std::string name;                    // "hard/1-math"
  std::filesystem::path out;           // its run directory; what is there already is continued
  std::vector<std::string> arguments;  // after the recipe: --set ...
  int64_t steps = 0;                   // one that has a snapshot of this step is not started again; 0: it always is
};

struct ExpertJob {
  std::string name;
  std::vector<ExpertRun> runs;  // one after the other
  double flops = 0;
  int64_t bytes = 0;
};

// An island and how processes are started there.
struct IslandHost {
  Island island;
  std::vector<int64_t> cores = {};       // of this machine; empty: all
  std::vector<std::string> launch = {};  // what stands before the command
  std::string device = "cpu";
};

struct ExpertJobsOptions {
  std::string program;                                                                  // Cairn itself
  std::filesystem::path recipe;                                                         // that every run is trained by
  std::vector<IslandHost> hosts;                                                        // at least one
  int64_t restarts = 3;                                                                 // of one run
  std::function<void(const std::string& run, int64_t attempt, int pid)> on_start = {};  // hears of every process; from any thread
};

struct ExpertJobResult {
  std::string island;  // where its last run ended
  double seconds = 0;  // of all its processes
  int64_t restarts = 0;
};

// Runs all jobs, longest first (schedule_jobs). A process that ends badly is started again and goes on from its last snapshot, on the next
// island that has room for it, where there is one; no other job is touched. A run that is lost more often than `restarts` is an error that
// says how it ended; so is wrong input, at once. In the order of the jobs.
std::vector<ExpertJobResult> run_expert_jobs(const std::vector<ExpertJob>& jobs, const ExpertJobsOptions& options, base::Log& log,
                                             const base::Stop& stop);

}  // namespace cairn::study
