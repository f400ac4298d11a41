#include "study/process.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/check.h"
#include "base/clock.h"

extern char** environ;

namespace cairn::study {

Ended run_program(const std::vector<std::string>& argv, const std::string& log_file, const std::function<void(int pid)>& on_start) {
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
  int status = 0;
  rusage used{};
  while (wait4(child, &status, 0, &used) < 0) CAIRN_CHECK(errno == EINTR, "wait4: {}", std::strerror(errno));
  Ended ended;
  ended.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  ended.seconds = base::seconds(clock.now());
  ended.peak_bytes = used.ru_maxrss * 1024;
  std::ifstream file(log_file, std::ios::binary);
  ended.output.assign(std::istreambuf_iterator<char>(file), {});
  if (ended.output.size() > 4000) ended.output.erase(0, ended.output.size() - 4000);
  return ended;
}

}  // namespace cairn::study
