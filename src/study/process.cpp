#include "study/process.h"

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

extern char** environ;

namespace cairn::study {
namespace {

constexpr std::chrono::seconds kGrace{10};  // from being asked to end to being made to

bool ended_within(int descriptor, std::chrono::duration<double> limit) {
  const base::RealClock clock;
  for (double left = limit.count(); left > 0; left = limit.count() - base::seconds(clock.now())) {
    pollfd wanted{descriptor, POLLIN, 0};
    const int ready = poll(&wanted, 1, static_cast<int>(std::ceil(left * 1000)));
    CAIRN_CHECK(ready >= 0 || errno == EINTR, "poll: {}", std::strerror(errno));
    if (ready > 0) return true;
  }
  return false;
}

// Ends a child after the limit: SIGTERM, then SIGKILL. The caller still has to wait for it.
void end_within(pid_t child, std::chrono::duration<double> limit) {
  const auto descriptor = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  CAIRN_CHECK(descriptor >= 0, "pidfd_open: {}", std::strerror(errno));
  if (!ended_within(descriptor, limit)) {
    kill(child, SIGTERM);
    if (!ended_within(descriptor, kGrace)) kill(child, SIGKILL);
  }
  close(descriptor);
}

ProcessResult run(const std::vector<std::string>& argv, const std::string& log_file, const std::function<void(int pid)>& on_start,
                  const std::chrono::duration<double>* limit) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  const base::RealClock clock;
  pid_t child = 0;
  const int failed = posix_spawnp(&child, argv[0].c_str(), &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed) throw Error(Error::Kind::bad_input, fmt::format("cannot run {}: {}", argv[0], std::strerror(failed)));
  if (on_start) on_start(child);
  if (limit) end_within(child, *limit);
  int status = 0;
  rusage used{};
  while (wait4(child, &status, 0, &used) < 0) CAIRN_CHECK(errno == EINTR, "wait4: {}", std::strerror(errno));
  ProcessResult ended;
  ended.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  ended.seconds = base::seconds(clock.now());
  ended.peak_bytes = used.ru_maxrss * 1024;
  std::ifstream file(log_file, std::ios::binary);
  ended.output.assign(std::istreambuf_iterator<char>(file), {});
  if (ended.output.size() > 4000) ended.output.erase(0, ended.output.size() - 4000);
  return ended;
}

}  // namespace

ProcessResult run_program(const std::vector<std::string>& argv, const std::string& log_file, const std::function<void(int pid)>& on_start) {
  return run(argv, log_file, on_start, nullptr);
}

ProcessResult run_program_for(std::chrono::duration<double> limit, const std::vector<std::string>& argv, const std::string& log_file,
                              const std::function<void(int pid)>& on_start) {
  return run(argv, log_file, on_start, &limit);
}

}  // namespace cairn::study
