#include "study/expert_jobs.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <sched.h>
#include <set>
#include <thread>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"
#include "snapshot/folder.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr std::chrono::milliseconds kLookForStop{200};
constexpr int kWrongInput = 2;  // the program's exit code for what no restart mends

// The progress of a job.
struct RunningJob {
  size_t job = 0;
  size_t run = 0;       // the one that is next
  int64_t attempt = 0;  // of that run
};

// Binds this thread, and the processes it starts, to these cores.
void keep_to(const std::vector<int64_t>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int64_t core : cores)
    if (core < CPU_SETSIZE) CPU_SET(static_cast<size_t>(core), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    base::fail_input("study.island: cores {}: this machine has no such cores", fmt::join(cores, ", "));
}

bool is_done(const ExpertRun& run) {
  if (run.steps == 0 || !std::filesystem::exists(run.out / "ledger.json")) return false;  // written when a run is over
  const std::vector<snapshot::StepFolder> saved = snapshot::step_folders(run.out.string());
  return !saved.empty() && saved.front().step == run.steps;
}

// One queue and one thread per host. A job whose process failed moves to another host's queue.
class JobQueues {
 public:
  JobQueues(const std::vector<ExpertJob>& jobs, const ExpertJobsOptions& options, base::Log& log, const base::Stop& stop)
      : jobs_(jobs), options_(options), log_(log), stop_(stop), queues_(options.hosts.size()), ended_(jobs.size()), left_(jobs.size()) {
    std::vector<JobCost> wanted;
    std::vector<Island> islands;
    for (const ExpertJob& job : jobs) wanted.push_back({job.name, job.flops, job.bytes});
    for (const IslandHost& host : options.hosts) islands.push_back(host.island);
    const JobSchedule placed = schedule_jobs(wanted, islands);
    for (size_t i = 0; i < queues_.size(); ++i)
      for (const size_t job : placed.jobs[i]) queues_[i].push_back({.job = job});
  }

  std::vector<ExpertJobResult> run() {
    {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < queues_.size(); ++i) threads.emplace_back([this, i] { work(i); });
      pass_on_stop();
    }
    if (failed_) std::rethrow_exception(failed_);
    return ended_;
  }

 private:
  // Waits until all jobs are done. Polls for a stop request, because a signal handler cannot notify a condition variable.
  void pass_on_stop() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLookForStop, [&] { return failed_ || left_ == 0; }))
      if (stop_.requested()) {
        for (const int pid : running_) kill(pid, SIGTERM);  // they save and end
        return;
      }
  }

  void work(size_t host) {
    try {
      keep_to(options_.hosts[host].cores);
      while (std::optional<RunningJob> next = take(host)) go_on(*next, host);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failed_) failed_ = std::current_exception();
      for (const int pid : running_) kill(pid, SIGTERM);
      changed_.notify_all();
    }
  }

  std::optional<RunningJob> take(size_t host) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failed_ || left_ == 0 || !queues_[host].empty(); });
    if (failed_ || left_ == 0) return std::nullopt;
    const RunningJob next = queues_[host].front();
    queues_[host].pop_front();
    return next;
  }

  // Runs a job until it is done or moves to another host.
  void go_on(RunningJob going, size_t host) {
    const ExpertJob& job = jobs_[going.job];
    while (going.run < job.runs.size()) {
      const ExpertRun& run = job.runs[going.run];
      if (is_done(run)) {
        ++going.run;
        continue;
      }
      const ProcessResult ended = start(run, going.attempt, options_.hosts[host]);
      const std::lock_guard lock(mutex_);
      ExpertJobResult& sums = ended_[going.job];
      sums.seconds += ended.seconds;
      sums.island = options_.hosts[host].island.name;
      if (failed_) return;
      if (stop_.requested()) throw Error(Error::Kind::cancelled, "the study was stopped; start it again to go on");
      if (ended.exit_code == 0 && (run.steps == 0 || is_done(run))) {  // one that was asked to stop ends well, but early
        ++going.run;
        going.attempt = 0;
        continue;
      }
      if (ended.exit_code == kWrongInput) base::fail_input("{}: {}", run.name, ended.output);
      if (going.attempt >= options_.restarts)
        throw Error(Error::Kind::lost_peer, fmt::format("{}: lost {} (exit code {}): {}", run.name, base::plural(going.attempt + 1, "time"),
                                                        ended.exit_code, ended.output));
      ++going.attempt;
      ++sums.restarts;
      const size_t next = next_host(job, host);
      log_.warn("{} was lost on island {} (exit code {}): it goes on from its last snapshot on {}", run.name,
                options_.hosts[host].island.name, ended.exit_code, options_.hosts[next].island.name);
      if (next == host) continue;
      queues_[next].push_front(going);
      changed_.notify_all();
      return;
    }
    const std::lock_guard lock(mutex_);
    if (--left_ == 0) changed_.notify_all();
  }

  size_t next_host(const ExpertJob& job, size_t host) const {
    for (size_t step = 1; step < queues_.size(); ++step) {
      const size_t next = (host + step) % queues_.size();
      if (options_.hosts[next].island.fits({job.name, job.flops, job.bytes})) return next;
    }
    return host;
  }

  ProcessResult start(const ExpertRun& run, int64_t attempt, const IslandHost& host) {
    std::vector<std::string> argv = host.launch;
    argv.insert(argv.end(), {options_.program, "train", options_.recipe.string(), "--out", run.out.string(), "--resume", "auto"});
    if (host.device != "cpu") argv.insert(argv.end(), {"--device", host.device});
    argv.insert(argv.end(), run.arguments.begin(), run.arguments.end());
    base::make_folder(run.out.parent_path());
    int child = 0;
    const ProcessResult ended = run_program(argv, run.out.string() + ".log", [&](int pid) {
      child = pid;
      {
        const std::lock_guard lock(mutex_);
        running_.insert(pid);
      }
      log_.info("{} on {}: process {}", run.name, host.island.name, pid);
      if (options_.on_start) options_.on_start(run.name, attempt, pid);
    });
    const std::lock_guard lock(mutex_);
    running_.erase(child);
    return ended;
  }

  const std::vector<ExpertJob>& jobs_;
  const ExpertJobsOptions& options_;
  base::Log& log_;
  const base::Stop& stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<RunningJob>> queues_;  // of each host
  std::vector<ExpertJobResult> ended_;
  size_t left_;
  std::set<int> running_;
  std::exception_ptr failed_;
};

}  // namespace

std::vector<ExpertJobResult> run_expert_jobs(const std::vector<ExpertJob>& jobs, const ExpertJobsOptions& options, base::Log& log,
                                             const base::Stop& stop) {
  CAIRN_CHECK(!options.hosts.empty(), "no host for {} jobs", jobs.size());
  std::set<std::filesystem::path> outs;
  for (const ExpertJob& job : jobs)
    for (const ExpertRun& run : job.runs)
      if (!outs.insert(std::filesystem::weakly_canonical(run.out)).second)
        base::fail_input("{}: another run writes to {} already: each needs a directory of its own", run.name, run.out.string());
  return JobQueues(jobs, options, log, stop).run();
}

}  // namespace cairn::study
