#include "snapshot/run_lock.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "scratch_folder.h"

namespace cairn::snapshot {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

const RunLock::TryLock kNoFlock = [](int) {
  errno = ENOLCK;
  return -1;
};

std::string refusal_of_lock(const std::string& directory, const RunLock::TryLock& try_lock = {}) {
  try {
    const RunLock lock(directory, this_process(), try_lock, std::chrono::milliseconds(0));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "taken";
}

void write_lock(const std::string& directory, const LockOwner& owner) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/" + kLockFile) << fmt::format(R"({{"process":{},"host":"{}","process_start":"{}","since":"{}"}})",
                                                            owner.process, owner.host, owner.process_start, owner.since);
}

TEST(RunLock, NamesTheOwnerToASecondRun) {
  const ScratchFolder scratch;
  const RunLock lock(scratch / "runs/a");
  EXPECT_THAT(refusal_of_lock(scratch / "runs/a"),
              MatchesRegex(fmt::format(".*runs/a is in use by process {} on {} since 20..-..-.. ..:..:.. UTC: stop it \\(kill {}\\), or .*",
                                       ::getpid(), this_process().host, ::getpid())));
}

TEST(RunLock, LeavesNothingOfARunThatWroteNothing) {
  const ScratchFolder scratch;
  {
    const RunLock lock(scratch / "runs/a");
    EXPECT_TRUE(std::filesystem::exists(scratch / "runs/a/.lock"));
  }
  EXPECT_FALSE(std::filesystem::exists(scratch / "runs"));
}

TEST(RunLock, KeepsTheDirectoryOfARunThatWroteSomething) {
  const ScratchFolder scratch;
  {
    const RunLock lock(scratch / "a");
    std::ofstream(scratch / "a/recipe.toml") << "x";
  }
  EXPECT_TRUE(std::filesystem::exists(scratch / "a/recipe.toml"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "a/.lock"));
  EXPECT_EQ(refusal_of_lock(scratch / "a"), "taken");
  std::filesystem::create_directory(scratch / "empty");
  EXPECT_EQ(refusal_of_lock(scratch / "empty"), "taken");
  EXPECT_TRUE(std::filesystem::exists(scratch / "empty")) << "it was there before";
}

// A pipe; reading from its end waits for the writers to write, or to end.
struct Pipe {
  std::array<int, 2> ends{};
  Pipe() { EXPECT_EQ(::pipe(ends.data()), 0); }
  void close_end(int which) {
    if (ends[static_cast<size_t>(which)] >= 0) ::close(std::exchange(ends[static_cast<size_t>(which)], -1));
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  bool read_byte() const {
    char byte = 0;
    return ::read(ends[0], &byte, 1) == 1;
  }
  void write_byte() const { EXPECT_EQ(::write(ends[1], "x", 1), 1); }
};

TEST(RunLock, IsFreeOnceItsHolderIsKilled) {
  const ScratchFolder scratch;
  const Pipe taken;
  const pid_t holder = ::fork();
  if (holder == 0) {
    const RunLock lock(scratch / "a");
    taken.write_byte();
    ::pause();
    ::_exit(0);
  }
  ASSERT_TRUE(taken.read_byte());
  EXPECT_THAT(refusal_of_lock(scratch / "a"), HasSubstr(fmt::format("in use by process {} ", holder)));
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  EXPECT_EQ(refusal_of_lock(scratch / "a"), "taken");
}

// An agent is killed and a rank that it started still runs, for a moment or in a system call that cannot be interrupted.
TEST(RunLock, IsHeldUntilTheLastChildThatInheritedItHasEnded) {
  const ScratchFolder scratch;
  Pipe started, go_on, ended;
  const pid_t agent = ::fork();
  if (agent == 0) {
    RunLock lock(scratch / "a");
    lock.let_children_inherit();
    const pid_t rank = ::fork();
    if (rank == 0) {
      ::dup2(go_on.ends[0], STDIN_FILENO);
      ::dup2(ended.ends[1], STDOUT_FILENO);
      for (const Pipe* pipe : {&started, &go_on, &ended})
        for (const int end : pipe->ends) ::close(end);
      ::execlp("cat", "cat", nullptr);
      ::_exit(127);
    }
    started.write_byte();
    ::pause();
  }
  go_on.close_end(0);
  ended.close_end(1);
  ASSERT_TRUE(started.read_byte());
  ::kill(agent, SIGKILL);
  ::waitpid(agent, nullptr, 0);
  EXPECT_THAT(refusal_of_lock(scratch / "a"), HasSubstr(fmt::format("in use by process {} ", agent)));
  go_on.close_end(1);
  const RunLock next(scratch / "a");  // waits for the end of the rank
  EXPECT_FALSE(ended.read_byte()) << "the rank has ended";
}

TEST(RunLock, GivesEachOfManyAtOnceADirectoryOfItsOwn) {
  const ScratchFolder scratch;
  constexpr int kRuns = 10;
  std::array<std::unique_ptr<RunLock>, kRuns> locks;
  std::array<int, kRuns> numbers{};
  std::vector<std::thread> runs;
  for (size_t i = 0; i < kRuns; ++i)
    runs.emplace_back([&, i] {
      while (!locks[i]) locks[i] = RunLock::make_new(scratch / fmt::format("runs/a-{}", ++numbers[i]));
    });
  for (std::thread& run : runs) run.join();
  EXPECT_EQ(std::set<int>(numbers.begin(), numbers.end()), (std::set<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

TEST(RunLock, TellsOfAnotherHostWhereARunWasKilled) {
  const ScratchFolder scratch;
  write_lock(scratch / "a", {17, "elsewhere", "1", "then"});
  const RunLock lock(scratch / "a");
  EXPECT_EQ(lock.abandoned(), (LockOwner{17, "elsewhere", "1", "then"}));
}

TEST(RunLock, WithoutFlockJudgesBySeeingWhetherTheProcessRuns) {
  const ScratchFolder scratch;
  {
    const RunLock lock(scratch / "a", this_process(), kNoFlock);
    EXPECT_THAT(refusal_of_lock(scratch / "a", kNoFlock), HasSubstr(fmt::format("in use by process {} ", ::getpid())));
  }
  EXPECT_FALSE(std::filesystem::exists(scratch / "a"));
  LockOwner later = this_process();
  later.process_start = "1";  // a process of this number that ended before this one began
  write_lock(scratch / "a", later);
  EXPECT_EQ(refusal_of_lock(scratch / "a", kNoFlock), "taken");
  write_lock(scratch / "a", {17, "elsewhere", "1", "then"});
  EXPECT_THAT(refusal_of_lock(scratch / "a", kNoFlock),
              AllOf(HasSubstr("process 17 on elsewhere since then"), HasSubstr("If it has ended, remove " + (scratch / "a/.lock"))));
}

TEST(RunLock, RefusesAPathThatCannotBeADirectory) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "file") << "x";
  EXPECT_THAT(refusal_of_lock(scratch / "file/run"), HasSubstr("file/run: cannot be a run directory: Not a directory"));
  EXPECT_THAT(refusal_of_lock("/proc/nowhere/run"), HasSubstr("cannot be a run directory"));
}

}  // namespace
}  // namespace cairn::snapshot
