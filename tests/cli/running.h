#pragma once
#include <chrono>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>

#include <gtest/gtest.h>

#include "program.h"

extern char** environ;

namespace cairn::cli {

// A training run in the background.
class Running {
 public:
  // `output`: the file in the scratch folder that gets what it prints.
  Running(const harness::ScratchFolder& scratch, const std::vector<std::string>& arguments, const std::string& output = "background.txt") {
    std::vector<std::string> argv{"env", "-C", scratch.path().string(), "CAIRN_CACHE=" + (scratch / "cache").string(),
                                  std::string(CAIRN_BINARY_DIR) + "/cairn"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    std::vector<char*> raw;
    for (std::string& argument : argv) raw.push_back(argument.data());
    raw.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, (scratch / output).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    EXPECT_EQ(posix_spawnp(&process_, "env", &files, nullptr, raw.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Running() {
    if (process_ > 0) end(SIGKILL);
  }
  pid_t process() const { return process_; }
  void signal(int number) const { kill(process_, number); }
  // Sends the signal and waits for the end; the exit code, or 128 + the signal that ended it.
  int end(int number) {
    kill(process_, number);
    return wait();
  }
  int wait() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t process_ = -1;
};

// Waits until the run has booked so many steps; false after a minute.
inline bool reaches(const std::filesystem::path& run, size_t steps) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < deadline) {
    if (std::filesystem::exists(run / "metrics.jsonl") && losses_in(run).size() >= steps) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace cairn::cli
