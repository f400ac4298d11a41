// Runs that are killed or asked to stop, and what is left to continue from.
#include <chrono>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>

#include <gtest/gtest.h>

#include "base/metrics.h"
#include "program.h"

extern char** environ;

namespace cairn::cli {
namespace {

// A training run in the background.
class Running {
 public:
  Running(const harness::ScratchFolder& scratch, const std::vector<std::string>& arguments) {
    std::vector<std::string> argv{"env", "-C", scratch.path().string(), "CAIRN_CACHE=" + (scratch / "cache").string(),
                                  std::string(CAIRN_BINARY_DIR) + "/cairn"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    std::vector<char*> raw;
    for (std::string& argument : argv) raw.push_back(argument.data());
    raw.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, (scratch / "background.txt").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    EXPECT_EQ(posix_spawnp(&process_, "env", &files, nullptr, raw.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Running() {
    if (process_ > 0) end(SIGKILL);
  }
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
bool reaches(const std::filesystem::path& run, size_t steps) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < deadline) {
    if (std::filesystem::exists(run / "metrics.jsonl") && losses_in(run).size() >= steps) return true;
    std::this_thread::yield();
  }
  return false;
}

class Interrupted : public testing::TestWithParam<int> {};

TEST_P(Interrupted, AKilledRunContinuesExactly) {
  const std::string ranks = std::to_string(GetParam());
  const harness::ScratchFolder scratch;
  const auto arguments = [&](const std::string& out) {
    return tiny({"train", "--out", out, "--nproc", ranks, "--set", "train.steps=60", "--set", "snapshot.every=7"});
  };
  const Outcome whole = cairn(scratch, arguments("whole"));
  ASSERT_EQ(whole.code, 0) << whole.output;
  {
    Running running(scratch, arguments("killed"));
    ASSERT_TRUE(reaches(scratch / "killed", 17)) << scratch.text_of("background.txt");
    running.end(SIGKILL);
  }
  ASSERT_LT(losses_in(scratch / "killed").size(), 60u) << "it was too quick to be killed";
  std::vector<std::string> again = arguments("killed");
  again.insert(again.end(), {"--resume", "auto"});
  const Outcome resumed = cairn(scratch, again);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed"), std::string::npos) << resumed.output;
  EXPECT_EQ(losses_in(scratch / "killed"), losses_in(scratch / "whole"));
}

TEST_P(Interrupted, SigtermSavesAndStopsAndTheRunContinuesExactly) {
  const std::string ranks = std::to_string(GetParam());
  const harness::ScratchFolder scratch;
  const auto arguments = [&](const std::string& out) {
    return tiny({"train", "--out", out, "--nproc", ranks, "--set", "train.steps=60", "--set", "snapshot.every=0"});
  };
  ASSERT_EQ(cairn(scratch, arguments("whole")).code, 0);
  {
    Running running(scratch, arguments("stopped"));
    ASSERT_TRUE(reaches(scratch / "stopped", 5)) << scratch.text_of("background.txt");
    EXPECT_EQ(running.end(SIGTERM), 0) << scratch.text_of("background.txt");
  }
  const size_t done = losses_in(scratch / "stopped").size();
  ASSERT_LT(done, 60u);
  EXPECT_TRUE(std::filesystem::exists(scratch / "stopped" / "report.html"));
  const Outcome resumed = cairn(scratch, {"train", "--resume", "stopped", "--nproc", ranks});
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(losses_in(scratch / "stopped"), losses_in(scratch / "whole"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Interrupted, testing::Values(1, 2));

// The process of one rank, found by what the agent puts into its environment.
pid_t process_of_rank(const std::string& rank, const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    if (text.find("CAIRN_RANK=" + rank + std::string(1, '\0')) != std::string::npos && text.find(folder) != std::string::npos)
      return std::stoi(entry.path().filename().string());
  }
  return -1;
}

TEST(LostRank, EndsTheRunWithFourAndNamesTheRank) {
  const harness::ScratchFolder scratch;
  Running running(scratch, tiny({"train", "--out", "run", "--nproc", "3", "--set", "train.steps=100000"}));
  ASSERT_TRUE(reaches(scratch / "run", 3)) << scratch.text_of("background.txt");
  const pid_t victim = process_of_rank("1", scratch.path().string());
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  EXPECT_EQ(running.wait(), 4) << scratch.text_of("background.txt");
  EXPECT_NE(scratch.text_of("background.txt").find("rank 1"), std::string::npos) << scratch.text_of("background.txt");
}

}  // namespace
}  // namespace cairn::cli
