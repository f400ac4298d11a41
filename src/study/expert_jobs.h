// Runs independent jobs on islands. A job is a chain of `cairn train` processes; an island runs one job at a time.
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

// One `cairn train` process.
struct ExpertRun {
  std::string name;                    // "hard/1-math"
  std::filesystem::path out;           // its run directory; a run that is there is resumed
  std::vector<std::string> arguments;  // after the recipe: --set ...
  int64_t steps = 0;                   // a run with a snapshot of this step is skipped; 0: never
};

struct ExpertJob {
  std::string name;
  std::vector<ExpertRun> runs;  // in order
  double flops = 0;
  int64_t bytes = 0;
};

// An island, and how processes are started on it.
struct IslandHost {
  Island island;
  std::vector<int64_t> cores = {};       // of this machine; empty: all
  std::vector<std::string> launch = {};  // prefix of the command, such as ssh
  std::string device = "cpu";
};

struct ExpertJobsOptions {
  std::string program;                                                                  // the file of `cairn`
  std::filesystem::path recipe;                                                         // of every run
  std::vector<IslandHost> hosts;                                                        // at least one
  int64_t restarts = 3;                                                                 // of one run
  std::function<void(const std::string& run, int64_t attempt, int pid)> on_start = {};  // called for every process, from any thread
};

struct ExpertJobResult {
  std::string island;  // where its last run ran
  double seconds = 0;  // of all its processes
  int64_t restarts = 0;
};

// Runs all jobs, longest first (schedule_jobs), and returns their results in the order of `jobs`. A process that fails is restarted from
// its last snapshot, on the next island with enough memory; other jobs are not affected. A run that fails more than `restarts` times is an
// error, and so is wrong input (exit code 2), at once.
std::vector<ExpertJobResult> run_expert_jobs(const std::vector<ExpertJob>& jobs, const ExpertJobsOptions& options, base::Log& log,
                                             const base::Stop& stop);

}  // namespace cairn::study
