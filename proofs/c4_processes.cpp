#include "proofs/c4_processes.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "base/json.h"
#include "base/process.h"
#include "base/run_events.h"
#include "study/process.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

double since(Clock::time_point begun) { return std::chrono::duration<double>(Clock::now() - begun).count(); }

// Between two looks at a file.
void rest() {
  std::mutex lock;
  std::condition_variable never;
  std::unique_lock guard(lock);
  never.wait_for(guard, 100ms);
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The process of a rank: the agent's child with that rank in its environment.
pid_t process_of(pid_t agent, int rank) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::vector<std::string> stat = base::process_stat(std::atol(name.c_str()));
    if (stat.size() < 2 || std::atol(stat[4 - base::kFirstStatField].c_str()) != agent) continue;
    const std::string environment = '\0' + text_of(entry.path() / "environ");
    if (environment.find('\0' + fmt::format("CAIRN_RANK={}", rank) + '\0') != std::string::npos)
      return static_cast<pid_t>(std::atol(name.c_str()));
  }
  return -1;
}

// Stops the main thread of a process while it lives; other threads go on. One thread must make and destroy it.
class StoppedThread {
 public:
  explicit StoppedThread(pid_t thread) : thread_(thread) {
    if (::ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0) {
      thread_ = -1;
      return;
    }
    ::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr);
    int status = 0;
    ::waitpid(thread_, &status, __WALL);
  }
  ~StoppedThread() {
    if (thread_ > 0) ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
  }
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;
  bool stopped() const { return thread_ > 0; }

 private:
  pid_t thread_;
};

class ProcessRun {
 public:
  ProcessRun(const std::string& program, const std::string& scratch, const std::vector<std::string>& arguments)
      : run_(fs::path(scratch) / "run"), program_(program), scratch_(scratch) {
    std::vector<std::string> argv{"env", "CAIRN_CACHE=" + scratch + "/cache", program, "train", "--out", run_.string()};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    fs::create_directories(scratch);
    thread_ = std::jthread([this, argv, scratch] {
      run_program_for(std::chrono::seconds(900), argv, scratch + "/output.txt", [this](int pid) { agent_ = pid; });
      ended_ = true;
    });
  }
  ~ProcessRun() { end(); }
  void end() {
    if (agent_ > 0 && !ended_) ::kill(agent_, SIGKILL);  // its ranks die with it
    if (thread_.joinable()) thread_.join();
  }

  // Steps that the run has booked.
  int64_t steps() const {
    const std::string metrics = text_of(run_ / "metrics.jsonl");
    return std::count(metrics.begin(), metrics.end(), '\n');
  }
  bool reach(int64_t more, std::chrono::seconds limit) const {
    const int64_t goal = steps() + more;
    const auto begun = Clock::now();
    while (steps() < goal && !ended_ && Clock::now() - begun < limit) rest();
    return steps() >= goal;
  }
  std::vector<base::Json> reports() const {
    std::vector<base::Json> found;
    for (base::Json& event : base::read_events(run_))
      if (event.value("event", "") == "diagnosis") found.push_back(std::move(event));
    return found;
  }

  C4Injection inject(int rank, bool whole_process) const {
    C4Injection injection{.whole_process = whole_process, .rank = rank};
    const pid_t process = process_of(agent_, rank);
    const size_t before = reports().size();
    const auto begun = Clock::now();
    if (whole_process) ::kill(process, SIGSTOP);
    const StoppedThread thread(whole_process ? -1 : process);
    injection.impossible = !whole_process && !thread.stopped();
    while (!injection.impossible && since(begun) < 30) {
      const std::vector<base::Json> all = reports();
      if (all.size() > before) {
        injection.seconds = since(begun);
        injection.cause = all[before].value("cause", "");
        injection.reported = all[before].value("rank", -1);
        injection.line = base::compact(all[before]);
        break;
      }
      rest();
    }
    return injection;
  }
  std::string diagnose() const {
    run_program({program_, "diagnose", run_.string()}, scratch_ + "/diagnose.txt");
    return text_of(scratch_ + "/diagnose.txt");
  }
  std::string output() const { return text_of(scratch_ + "/output.txt"); }
  bool wait_for_end(std::chrono::seconds limit) const {
    const auto begun = Clock::now();
    while (!ended_ && Clock::now() - begun < limit) rest();
    return ended_;
  }

 private:
  fs::path run_;
  std::string program_, scratch_;
  std::atomic<pid_t> agent_ = -1;
  std::atomic<bool> ended_ = false;
  std::jthread thread_;
};

}  // namespace

C4RunOutcome run_c4_processes(const std::string& program, const std::string& scratch, const std::vector<std::string>& arguments,
                              const std::vector<int>& stick, int freeze, double clean_seconds) {
  C4RunOutcome outcome;
  ProcessRun run(program, scratch, arguments);
  if (run.reach(3, 240s)) {
    const auto begun = Clock::now();
    while (since(begun) < clean_seconds) rest();
    outcome.clean_seconds = since(begun);
    outcome.false_alarms = static_cast<int>(run.reports().size());
    for (const int rank : stick) {
      outcome.injections.push_back(run.inject(rank, false));
      if (outcome.injections.back().impossible || !run.reach(3, 60s)) break;
    }
    if (freeze >= 0) outcome.injections.push_back(run.inject(freeze, true));
    if (freeze >= 0) run.wait_for_end(30s);
  }
  const auto expected = static_cast<int>(
      std::count_if(outcome.injections.begin(), outcome.injections.end(), [](const C4Injection& one) { return one.reported >= 0; }));
  outcome.false_alarms += std::max(0, static_cast<int>(run.reports().size()) - outcome.false_alarms - expected);
  run.end();
  outcome.records = run.diagnose();
  outcome.output = run.output();
  return outcome;
}

}  // namespace cairn::study
