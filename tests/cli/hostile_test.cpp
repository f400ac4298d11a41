// Every bad input of `cairn prove hostile`, without the judgement of time: other tests run beside this one.
#include "study/hostile.h"

#include <atomic>
#include <fcntl.h>
#include <mutex>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/files.h"
#include "cli/commands.h"
#include "program.h"

namespace cairn::cli {
namespace {

constexpr int64_t kBytesMax = 400'000'000;  // above a program that reads nothing
constexpr unsigned kSecondsMax = 60;

// The command line's own function in a copy of this process: loading libtorch for each would take minutes. Not for `train`, which may
// start itself again.
study::ProcessResult run_as_copy(const study::HostileRun& run) {
  const pid_t copy = ::fork();
  if (copy == 0) {
    const int in = ::open(run.input.c_str(), O_RDONLY), out = ::open(run.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (::chdir(run.folder.c_str()) != 0 || ::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(out, 2) < 0) ::_exit(99);
    ::setenv("CAIRN_CACHE", run.cache.c_str(), 1);
    ::alarm(kSecondsMax);
    std::vector<std::string> words{"cairn"};
    words.insert(words.end(), run.arguments.begin(), run.arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int code = cli::run(static_cast<int>(words.size()), argv.data());
    std::fflush(nullptr);
    ::_exit(code);
  }
  int status = 0;
  rusage used{};
  ::wait4(copy, &status, 0, &used);
  return {.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
          .seconds = 0,
          .peak_bytes = used.ru_maxrss * 1024,
          .output = base::read_file(run.log, 64 << 20)};
}

TEST(Hostile, IsRefusedByAClearMessageInBoundedMemory) {
  const harness::ScratchFolder scratch;
  if (const pid_t maker = ::fork(); maker == 0) {  // it trains a little: no threads of that stay behind in this process
    study::make_hostile_fixtures(scratch / "fixtures");
    ::_exit(0);
  } else {
    int status = 0;
    ::waitpid(maker, &status, 0);
    ASSERT_EQ(status, 0);
  }
  const std::string program = std::string(CAIRN_BINARY_DIR) + "/cairn";
  const int64_t idle = study::run_program({program, "version"}, (scratch / "idle.log").string()).peak_bytes;
  const std::vector<study::HostileCase>& cases = study::hostile_cases();
  const study::HostileRunner process = study::hostile_process(program);
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  const auto work = [&] {
    for (size_t i = next++; i < cases.size(); i = next++) {
      const std::string& command = cases[i].arguments[0];
      if (cases[i].full || (command == "study" && i % 4 != 0)) continue;  // a study takes two new processes
      const bool copied = command != "train" && command != "study" && i % 20 != 0;
      const study::HostileOutcome outcome =
          study::run_hostile(cases[i], copied ? study::HostileRunner(run_as_copy) : process, scratch.path(), scratch / "fixtures");
      const std::lock_guard lock(mutex);
      EXPECT_EQ(outcome.trouble, "") << cases[i].reader << ": " << cases[i].name << "\nsaid: " << outcome.message.substr(0, 1000);
      EXPECT_LT(outcome.peak_bytes - idle, kBytesMax) << cases[i].reader << ": " << cases[i].name;
    }
  };
  std::thread other(work);
  work();
  other.join();
}

}  // namespace
}  // namespace cairn::cli
