// Supervision of the rank processes of one machine.
//
//   start    For each rank: write its setup into an anonymous file (memfd), fork, execve. The child asks the kernel to kill it when the
//            agent dies (PR_SET_PDEATHSIG), so that no rank outlives its agent.
//   watch    Poll the ranks' pidfds, for at most kGlance at a time:
//              a stop was requested   send SIGTERM to all ranks once; kill them after `grace`
//              a rank failed          kill the other ranks after `failure_grace`, and at once a rank that stands still: it cannot end by
//                                     itself. A run that has just begun has nothing to finish: its grace is the time that it has run, but
//                                     at least kYoungGrace
//              killed before joining  kill the other ranks after kUnjoinedGrace: they wait for its connection and cannot notice. Ranks of
//                                     other machines are told
//              with several islands   a rank that was killed, or ended with code 4, costs its own island only: the rest of that island is
//                                     killed after `failure_grace`, and the other islands go on
//   still    A rank stands still if its heartbeat counter stops (comm/net/liveness.h) and its process neither computes nor touches a new
//            page, both for 1.8 s. A rank in a long kernel still beats; one in page faults or in a slow exit still works.
//   at once  Where lost ranks are started again (end_at_once), the others are killed as soon as the cause is known, or 1 s after a rank has
//            ended because it lost another one.
//   result   The code of the first failure. Code 4 means that a rank lost another one. This is a consequence, so a later failure with
//            another code replaces it: that is the cause. After a requested stop, a rank that ended well may be what others lost: if no
//            rank failed in another way, the stop was clean.
#include "train/agent.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "comm/net/liveness.h"
#include "comm/net/setup.h"
#include "comm/shm/segment.h"
#include "train/diagnosis/rank_diagnosis.h"

extern char** environ;

namespace cairn::train {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

constexpr auto kGlance = std::chrono::milliseconds(100);          // how often the agent checks for a requested stop
constexpr auto kUnjoinedGrace = std::chrono::milliseconds(500);   // from the death of a rank that never connected until the rest are killed
constexpr auto kAnnounceLimit = std::chrono::milliseconds(1000);  // to tell other machines that a rank has ended
constexpr auto kCauseGrace = std::chrono::milliseconds(1000);     // from a rank that lost another one until the cause must be known
constexpr auto kYoungGrace = std::chrono::milliseconds(1500);     // the same, of one that was killed soon after the start

// Owns a file descriptor.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail(const char* what) { throw Error(Error::Kind::bad_input, fmt::format("{}: {}", what, std::strerror(errno))); }

// Writes the setup of one rank into an anonymous file, at offset 0 for reading.
File setup_file(const comm::NetSetup& setup) {
  const std::string text = comm::to_bytes(setup);
  File file(::memfd_create("cairn-setup", MFD_CLOEXEC));
  if (file.fd() < 0) fail("memfd_create");
  if (::write(file.fd(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) || ::lseek(file.fd(), 0, SEEK_SET) != 0)
    fail("set-up file");
  return file;
}

std::vector<std::string> environment(const AgentOptions& options, const comm::NetSetup& setup, int setup_fd) {
  std::vector<std::pair<std::string, std::string>> own = options.env;
  const std::vector<int> here = setup.neighbours();
  own.emplace_back("CAIRN_RANK", std::to_string(setup.rank));
  own.emplace_back("CAIRN_LOCAL_RANK", std::to_string(std::find(here.begin(), here.end(), setup.rank) - here.begin()));
  own.emplace_back("CAIRN_WORLD_SIZE", std::to_string(setup.size));
  own.emplace_back("CAIRN_SETUP_FD", std::to_string(setup_fd));
  std::vector<std::string> all;
  for (char** one = environ; *one; ++one) {
    const std::string_view text = *one;
    const auto replaced = [&](const auto& entry) { return text.substr(0, text.find('=')) == entry.first; };
    if (std::none_of(own.begin(), own.end(), replaced)) all.emplace_back(text);
  }
  for (const auto& [key, value] : own) all.push_back(key + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// Runs in the child. It makes only async-signal-safe calls, because the parent has threads.
[[noreturn]] void become_rank(char* const* argv, char* const* env, pid_t agent, const std::vector<int>& inherited,
                              const AgentOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != agent) ::_exit(4);  // the agent died before prctl
  sigset_t held;
  ::sigemptyset(&held);
  if (options.hold_stop) {
    ::sigaddset(&held, SIGINT);
    ::sigaddset(&held, SIGTERM);
  }
  ::sigprocmask(SIG_SETMASK, &held, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) ::signal(signal, SIG_DFL);
  for (const int fd : inherited) {
    if (fd >= 0) ::fcntl(fd, F_SETFD, 0);
  }
  for (const int fd : options.inherited_fds) ::fcntl(fd, F_SETFD, 0);
  ::execve(argv[0], argv, env);
  ::_exit(127);
}

struct Rank {
  pid_t pid = -1;
  File ended;                      // readable once the process has ended
  std::optional<int> status = {};  // as wait reports it
  bool killed = false;             // because it stood still
  bool ended_by_agent = false;     // because others are lost: no failure of its own
  bool by_agent = false;           // killed by this agent, after another one's failure
};

// Grows whenever a process computes or touches a new page: its page faults (fields 10 and 12) and processor time (14 and 15). 0 if the
// process is gone.
uint64_t activity(pid_t pid) {
  const std::vector<std::string> stat = base::process_stat(pid);
  uint64_t sum = 0;
  for (const size_t field : {10, 12, 14, 15})
    if (field - base::kFirstStatField < stat.size()) sum += std::strtoull(stat[field - base::kFirstStatField].c_str(), nullptr, 10);
  return sum;
}

// Watches the heartbeats of the ranks in the memory that they share. A lone rank shares none and is not judged.
class RankWatch {
 public:
  explicit RankWatch(const std::vector<comm::NetSetup>& setups) : seen_(setups.size()) {
    if (setups.size() > 1 && setups.front().segment_fd >= 0)
      segment_ = std::make_unique<comm::SharedSegment>(setups.front().segment_fd, static_cast<int>(setups.size()));
  }

  void look(const std::vector<Rank>& ranks, Nanoseconds now) {
    const bool anew = now - last_look_ > comm::LivenessMonitor::kPauseMax;  // the agent itself stood still, perhaps with its ranks
    last_look_ = now;
    for (size_t i = 0; segment_ && i < ranks.size(); ++i) {
      if (ranks[i].status) continue;
      Seen& seen = seen_[i];
      const uint64_t beat = this->beat(i), active = activity(ranks[i].pid);
      seen.joined = seen.joined || beat != 0;
      if (anew || beat != seen.beat || active != seen.active) seen = {beat, active, now, seen.joined};
    }
  }

  // How long a rank has stood still, where that is beyond the limit. A rank that has no heartbeat yet, or has left, is not judged.
  std::optional<Nanoseconds> still(size_t i, Nanoseconds now) const {
    if (!segment_ || seen_[i].beat == 0 || now - seen_[i].at <= comm::LivenessMonitor::kLimit) return std::nullopt;
    return now - seen_[i].at;
  }

  // Whether it is known that this rank has never connected to the others.
  bool never_joined(size_t i) const { return segment_ && !seen_[i].joined && beat(i) == 0; }

 private:
  struct Seen {
    uint64_t beat = 0, active = 0;
    Nanoseconds at{};
    bool joined = false;
  };
  uint64_t beat(size_t i) const { return segment_->board(static_cast<int>(i)).beat.load(std::memory_order_relaxed); }

  std::unique_ptr<comm::SharedSegment> segment_;
  std::vector<Seen> seen_;
  Nanoseconds last_look_ = Nanoseconds::min() / 2;
};

std::string how(int status) {
  if (WIFSIGNALED(status)) {
    const char* name = ::sigabbrev_np(WTERMSIG(status));
    return fmt::format("was killed by signal {} (SIG{})", WTERMSIG(status), name ? name : "?");
  }
  if (WEXITSTATUS(status) == 127) return "could not be started (exit code 127)";
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

// As long as it lives, SIGTERM and SIGINT to this thread wait.
class StopsHeld {
 public:
  StopsHeld() {
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &stops, &before_);
  }
  ~StopsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopsHeld(const StopsHeld&) = delete;
  StopsHeld& operator=(const StopsHeld&) = delete;

 private:
  sigset_t before_{};
};

// The running ranks.
class Agent {
 public:
  Agent(const AgentOptions& options, base::Log& log, const base::Stop& stop)
      : options_(options), log_(log), stop_(stop), watch_(options.setups), diagnosis_(options.setups, options.diagnosis, log) {}
  ~Agent() {
    signal_all(SIGKILL);
    while (running() > 0 && reap(0)) {
    }
  }

  void start() {
    const std::vector<comm::NetSetup>& setups = options_.setups;
    std::vector<File> inherited;
    for (const comm::NetSetup& setup : setups) {
      for (const int fd : setup.fds()) inherited.emplace_back(fd);
    }
    const StopsHeld held;  // a child has this process's handlers until it is another program: a stop would be lost in it
    for (const comm::NetSetup& setup : setups) {
      File file = setup_file(setup);
      std::vector<std::string> argv = options_.argv, env = environment(options_, setup, file.fd());
      const auto argv_list = pointers(argv), env_list = pointers(env);
      std::vector<int> kept = setup.fds();
      kept.push_back(file.fd());
      const pid_t agent = ::getpid();
      const pid_t pid = ::fork();
      if (pid < 0) fail("fork");
      if (pid == 0) become_rank(argv_list.data(), env_list.data(), agent, kept, options_);
      ranks_.push_back({pid, File(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))});
    }
  }

  RanksEnded watch() {
    std::optional<Nanoseconds> kill_at;  // when all ranks are killed
    started_at_ = clock_.now();
    while (running() > 0) {
      watch_.look(ranks_, clock_.now());
      if (diagnosis_.due()) diagnosis_.look(processes());
      if (stop_.requested() && !std::exchange(passed_on_, true)) {
        pass_on(stop_.signal());
        kill_at = sooner(kill_at, clock_.now() + options_.grace);
      }
      if (options_.over && !ended_.over && options_.over()) {
        ended_.over = true;
        end_others();
      }
      if (reap(WNOHANG)) {
        if (ends_at_once() && first_failure_) {
          if (!consequence_) end_others();
          kill_at = sooner(kill_at, clock_.now() + kCauseGrace);
          continue;
        }
        if (died_unjoined_) kill_at = sooner(kill_at, clock_.now() + std::min<Nanoseconds>(kUnjoinedGrace, options_.failure_grace));
        if (first_failure_ && !others_go_on()) kill_at = sooner(kill_at, clock_.now() + failure_grace());
        continue;
      }
      end_lost_islands();
      end_still_ranks();
      if (kill_at && clock_.now() >= *kill_at && ends_at_once()) {
        end_others();
        kill_at.reset();
      } else if (kill_at && clock_.now() >= *kill_at) {
        log_.warn("ranks still running after the grace time are killed count={}", running());
        signal_all(SIGKILL);
        kill_at.reset();
      }
      rest();
    }
    diagnosis_.finish(processes());
    ended_.code = result();
    ended_.stopped = passed_on_;
    ended_.at = base::wall_time();
    if (ended_.code == 0 && others_go_on()) ended_.cause.reset();
    return ended_;
  }

 private:
  // Whether nothing that the remaining ranks do counts once one is lost. A requested stop lets them save.
  bool ends_at_once() const { return options_.end_at_once && !passed_on_; }
  void end_others() {
    diagnosis_.look(processes());  // while it can be seen who is to blame
    for (Rank& rank : ranks_) {
      if (rank.status || std::exchange(rank.ended_by_agent, true)) continue;
      ::kill(rank.pid, SIGKILL);
    }
  }

  // What the diagnosis needs to know of the processes.
  std::vector<RankProcess> processes() const {
    using elastic::Liveness;
    std::vector<RankProcess> all;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const Rank& rank = ranks_[i];
      // 2: wrong input, which all ranks refuse; 4: it has lost another rank.
      const int code = rank.status && WIFEXITED(*rank.status) ? WEXITSTATUS(*rank.status) : -1;
      const bool gone = rank.status && !rank.by_agent && !rank.ended_by_agent && code != 0 && code != 2 && code != 4;
      if (rank.killed || (!rank.status && watch_.still(i, clock_.now())))
        all.push_back({Liveness::frozen, "its process stands still, without a sign of life"});
      else
        all.push_back(gone ? RankProcess{Liveness::dead, how(*rank.status)}
                           : RankProcess{rank.status ? Liveness::ended : Liveness::running});
    }
    return all;
  }

  int island_of(size_t i) const { return options_.setups[i].rank / std::max(1, options_.setups[i].size / options_.islands); }
  // From a failure until the other ranks are killed.
  Nanoseconds failure_grace() const {
    if (passed_on_) return options_.failure_grace;
    return std::min(options_.failure_grace, std::max<Nanoseconds>(kYoungGrace, clock_.now() - started_at_));
  }
  static bool well(const Rank& rank) { return rank.status && WIFEXITED(*rank.status) && WEXITSTATUS(*rank.status) == 0; }
  // Whether the failure concerns one island only: a rank was killed or lost another one. Other failures, such as wrong input, end all.
  // An island that was never connected to the others cannot be left behind: they wait for it.
  bool others_go_on() const { return options_.islands > 1 && !died_unjoined_ && first_failure_.value_or(4) == 4; }
  // Kills the remaining ranks of islands that have lost a rank.
  void end_lost_islands() {
    if (options_.islands <= 1) return;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (!ranks_[i].status || well(ranks_[i])) continue;
      auto [at, first] = lost_islands_.try_emplace(island_of(i), clock_.now() + failure_grace());
      if (first) log_.warn("island {} is lost; the others go on", island_of(i));
      if (clock_.now() < at->second) continue;
      for (size_t j = 0; j < ranks_.size(); ++j) {
        if (ranks_[j].status || island_of(j) != island_of(i)) continue;
        ranks_[j].by_agent = true;
        ::kill(ranks_[j].pid, SIGKILL);
      }
    }
  }

  // Kills ranks that stand still and that others have given up: a rank of their island has failed, or nobody else is left.
  void end_still_ranks() {
    const Nanoseconds now = clock_.now();
    const bool one_ended = running() < static_cast<int>(ranks_.size());
    const bool only_still_left = one_ended && std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
                                   return rank.status || watch_.still(static_cast<size_t>(&rank - ranks_.data()), now);
                                 });
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const auto still = watch_.still(i, now);
      const bool given_up = (first_failure_ && !others_go_on()) || lost_islands_.contains(island_of(i)) || only_still_left;
      if (ranks_[i].status || !still || !given_up || std::exchange(ranks_[i].killed, true)) continue;
      log_.write(base::Level::error, fmt::format("rank {} stands still, without a sign of life for {:.1f} s: it is killed",
                                                 options_.setups[i].rank, base::seconds(*still)));
      ::kill(ranks_[i].pid, SIGKILL);
    }
  }

  // A SIGINT from the terminal has reached the ranks already: they are in the same process group.
  void pass_on(int signal) {
    log_.info("stopping {}", base::plural(running(), "rank"));
    if (signal == SIGINT && ::isatty(STDIN_FILENO) && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp()) return;
    signal_all(SIGTERM);
  }

  void signal_all(int signal) {
    for (Rank& rank : ranks_) {
      if (rank.status) continue;
      rank.by_agent = rank.by_agent || signal == SIGKILL;
      ::kill(rank.pid, signal);
    }
  }

  // Records the end of one rank; false if no rank has ended.
  bool reap(int flags) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].status) continue;
      int status = 0;
      if (::waitpid(ranks_[i].pid, &status, flags) != ranks_[i].pid) continue;
      ranks_[i].status = status;
      died_unjoined_ = died_unjoined_ || (WIFSIGNALED(status) && watch_.never_joined(i));
      if (ranks_[i].ended_by_agent && WIFSIGNALED(status)) return true;
      note(i, status);
      if (!well(ranks_[i])) comm::announce_death(options_.setups[i], kAnnounceLimit);  // on other machines nobody else notices
      return true;
    }
    return false;
  }

  void note(size_t i, int status) {
    const int rank = options_.setups[i].rank;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    const bool said_why = WIFEXITED(status) && WEXITSTATUS(status) == 2;  // wrong input: rank 0 has printed the reason
    if (!said_why) log_.write(base::Level::error, fmt::format("rank {} {}", rank, how(status)));
    const int code = WIFSIGNALED(status) || WEXITSTATUS(status) == 127 ? 4 : WEXITSTATUS(status);
    const bool consequence = WIFEXITED(status) && code == 4;  // it lost another rank; that rank's own code says more
    if (!first_failure_ || (consequence_ && !consequence)) {
      first_failure_ = WIFEXITED(status) && WEXITSTATUS(status) == 127 ? 3 : code;
      consequence_ = consequence;
      ended_.cause = LostRank{.rank = rank,
                              .pid = ranks_[i].pid,
                              .code = *first_failure_,
                              .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                              .frozen = ranks_[i].killed,
                              .wrong_input = WIFEXITED(status) && (WEXITSTATUS(status) == 2 || WEXITSTATUS(status) == 127),
                              .consequence = consequence,
                              .how = how(status),
                              .at = base::wall_time() - (ranks_[i].killed ? base::seconds(comm::LivenessMonitor::kLimit) : 0)};
    }
  }

  // Waits until a rank ends, for at most kGlance.
  void rest() const {
    std::vector<pollfd> ends;
    for (const Rank& rank : ranks_) {
      if (!rank.status && rank.ended.fd() >= 0) ends.push_back({rank.ended.fd(), POLLIN, 0});
    }
    ::poll(ends.data(), ends.size(), static_cast<int>(kGlance.count()));
  }

  int running() const {
    return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.status; }));
  }
  int result() const {
    std::map<int, bool> came_to_its_end;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      auto [island, first] = came_to_its_end.try_emplace(island_of(i), true);
      island->second = island->second && well(ranks_[i]);
    }
    for (const auto& [island, whole] : came_to_its_end)
      if (whole && others_go_on()) return 0;
    if (passed_on_ && consequence_ && std::any_of(ranks_.begin(), ranks_.end(), well)) return 0;
    return first_failure_.value_or(0);
  }
  static Nanoseconds sooner(std::optional<Nanoseconds> a, Nanoseconds b) { return a ? std::min(*a, b) : b; }

  const AgentOptions& options_;
  base::Log& log_;
  const base::Stop& stop_;
  base::RealClock clock_;
  std::vector<Rank> ranks_;
  RankWatch watch_;
  RankDiagnosis diagnosis_;
  std::map<int, Nanoseconds> lost_islands_;  // island, and when its remaining ranks are killed
  std::optional<int> first_failure_;
  bool consequence_ = false;  // it is that a rank lost another one
  RanksEnded ended_;
  Nanoseconds started_at_{};
  bool passed_on_ = false;      // a requested stop
  bool died_unjoined_ = false;  // a rank was killed before it had connected to the others
};

}  // namespace

RanksEnded start_and_watch_ranks(const AgentOptions& options, base::Log& log, const base::Stop& stop) {
  CAIRN_CHECK(!options.setups.empty(), "no ranks to start");
  CAIRN_CHECK(!options.argv.empty(), "no program to start");
  Agent agent(options, log, stop);
  agent.start();
  return agent.watch();
}

int run_ranks(const AgentOptions& options, base::Log& log, const base::Stop& stop) {
  return start_and_watch_ranks(options, log, stop).code;
}

comm::NetSetup inherited_setup(int setup_fd) {
  File file(setup_fd);
  std::string text(16 << 20, '\0');
  const ssize_t length = ::pread(setup_fd, text.data(), text.size(), 0);
  const auto refuse = [&](const char* why) {
    base::fail_input("CAIRN_SETUP_FD = {}: {}: this process was not started by cairn's agent", setup_fd, why);
  };
  if (length < 0) refuse(std::strerror(errno));
  comm::NetSetup setup;
  try {
    setup = comm::setup_from_bytes({text.data(), static_cast<size_t>(length)});
  } catch (const Error& error) {
    refuse(error.what());
  }
  for (const int fd : setup.fds()) {
    if (fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  return setup;
}

}  // namespace cairn::train
