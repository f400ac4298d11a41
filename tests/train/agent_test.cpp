#include "train/agent.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <signal.h>
#include <string_view>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/world.h"

namespace cairn::train {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

AgentOptions shell(int nproc, const std::string& script) {
  AgentOptions options;
  options.setups = comm::make_net_setups(nproc);
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

// This program as a rank: it runs the test DISABLED_... that is named below.
AgentOptions self(int nproc, const std::string& what) {
  AgentOptions options;
  options.setups = comm::make_net_setups(nproc);
  options.argv = {std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_also_run_disabled_tests",
                  "--gtest_filter=AgentRank.DISABLED_" + what, "--gtest_brief=1"};
  options.failure_grace = 5s;
  return options;
}

struct Ended {
  int code = 0;
  std::string log;
};

Ended run_to_end(const AgentOptions& options, const base::Stop& stop = base::Stop()) {
  base::Log log = base::Log::capture();
  Ended ended{run_ranks(options, log, stop), ""};
  for (const std::string& line : log.lines()) ended.log += line + "\n";
  return ended;
}

// --- what the ranks do -------------------------------------------------------------------------------------------------------------------

comm::World joined() {
  return comm::World(comm::make_net_transport(inherited_setup(std::atoi(std::getenv("CAIRN_SETUP_FD")))), {.deadline = 20s});
}

[[noreturn]] void end_with(int code) { ::_exit(code); }

TEST(AgentRank, DISABLED_Sums) {
  comm::World world = joined();
  std::vector<int64_t> x(1000, world.rank() + 1);
  world.everyone().all_reduce({x.data(), 1000, comm::Dtype::i64}, comm::Reduce::sum, {comm::Purpose::data, "x"}).wait();
  EXPECT_EQ(x[999], int64_t{world.size()} * (world.size() + 1) / 2);
  EXPECT_EQ(std::to_string(world.rank()), std::getenv("CAIRN_RANK"));
}

// Rank 1 is killed in the middle; the others must name it and end with 4.
TEST(AgentRank, DISABLED_LosesOne) {
  comm::World world = joined();
  // The other two ranks report that they are here, so that they notice the loss in the barrier.
  uint8_t here = 1;
  if (world.rank() == 1) {
    for (const int peer : {0, 2}) world.everyone().recv({&here, 1, comm::Dtype::u8}, peer, {comm::Purpose::control, "here"}).wait();
    ::kill(::getpid(), SIGKILL);
  }
  world.everyone().send({&here, 1, comm::Dtype::u8}, 1, {comm::Purpose::control, "here"}).wait();
  try {
    world.everyone().barrier("the end").wait();
  } catch (const Error& error) {
    EXPECT_EQ(error.peer(), 1);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 lost: "));
    EXPECT_THAT(error.what(), HasSubstr("barrier of the end"));
    world.fail(error);
    if (!testing::Test::HasFailure()) end_with(error.exit_code());
  }
  end_with(99);
}

// Rank 1 stops itself; the others wait for it. They must name it, and nobody else.
TEST(AgentRank, DISABLED_WaitsForAStoppedRank) {
  comm::World world = joined();
  world.everyone().barrier("the start").wait();
  if (world.rank() == 1) ::kill(::getpid(), SIGSTOP);
  try {
    world.everyone().barrier("the end").wait();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 lost: its process stands still"));
    world.fail(error);
    if (!testing::Test::HasFailure()) end_with(error.exit_code());
  }
  end_with(99);
}

// Rank 1 is killed soon after the start; rank 0 computes and does not notice.
TEST(AgentRank, DISABLED_ComputesWhileOneIsKilled) {
  comm::World world = joined();
  world.everyone().barrier("the start").wait();
  if (world.rank() == 1) ::kill(::getpid(), SIGKILL);
  while (true) std::this_thread::yield();
}

// Reports that it is ready, receives SIGTERM, and only then installs its handler.
TEST(AgentRank, DISABLED_HandlesAStopLate) {
  std::ofstream(std::string(std::getenv("READY")) + "0") << "ready";
  sigset_t pending;
  do {
    std::this_thread::yield();
    ::sigpending(&pending);
  } while (!sigismember(&pending, SIGTERM));
  ::signal(SIGTERM, [](int) { ::_exit(5); });
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ::sigprocmask(SIG_UNBLOCK, &term, nullptr);
  end_with(99);
}

// --- the agent ---------------------------------------------------------------------------------------------------------------------------

TEST(Agent, GivesZeroWhereAllRanksEndWell) {
  const Ended ended = run_to_end(shell(3, "exit 0"));
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.log, "");
}

TEST(Agent, PutsRankAndSizeIntoTheEnvironment) {
  AgentOptions options = shell(3, "test $CAIRN_WORLD_SIZE = 3 && test $EXTRA = yes && exit $((CAIRN_RANK == 2 ? 7 : 0))");
  options.env = {{"EXTRA", "yes"}, {"CAIRN_RANK", "wrong"}};
  const Ended ended = run_to_end(options);
  EXPECT_EQ(ended.code, 7);
  EXPECT_EQ(ended.log, "[0] error: rank 2 ended with exit code 7\n");
}

TEST(Agent, GivesTheCodeOfTheCauseNotOfThoseWhoLostIt) {
  EXPECT_EQ(run_to_end(shell(3, "if [ $CAIRN_RANK = 1 ]; then sleep 0.2; exit 2; fi; exit 4")).code, 2);
}

TEST(Agent, SaysWhoWasKilledAndGivesFour) {
  const Ended ended = run_to_end(shell(2, "if [ $CAIRN_RANK = 1 ]; then kill -9 $$; fi"));
  EXPECT_EQ(ended.code, 4);
  EXPECT_EQ(ended.log, "[0] error: rank 1 was killed by signal 9 (SIGKILL)\n");
}

TEST(Agent, SaysThatAProgramCannotBeStarted) {
  AgentOptions options = shell(1, "");
  options.argv = {"/nowhere/program"};
  const Ended ended = run_to_end(options);
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.log, HasSubstr("rank 0 could not be started"));
}

// Requests a stop as soon as every rank has written a file that says it is ready.
Ended run_and_stop(AgentOptions options) {
  const auto folder = std::filesystem::temp_directory_path() / ("cairn-agent-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  options.env = {{"READY", (folder / "r").string()}};
  base::Stop stop;
  std::jthread asker([&] {
    for (int rank = 0; rank < static_cast<int>(options.setups.size()); ++rank) {
      while (!std::filesystem::exists(folder / ("r" + std::to_string(rank)))) std::this_thread::yield();
    }
    stop.request(SIGTERM);
  });
  const Ended ended = run_to_end(options, stop);
  asker.join();
  std::filesystem::remove_all(folder);
  return ended;
}

TEST(Agent, PassesAStopOnToEveryRankOnce) {
  const Ended ended = run_and_stop(shell(2, "trap 'exit 5' TERM; echo > $READY$CAIRN_RANK; while true; do sleep 0.02; done"));
  EXPECT_EQ(ended.code, 5);
  EXPECT_THAT(ended.log, HasSubstr("rank 0 ended with exit code 5"));
  EXPECT_THAT(ended.log, HasSubstr("rank 1 ended with exit code 5"));
}

TEST(Agent, KillsRanksThatDoNotEndWithinTheGraceTime) {
  AgentOptions options = shell(1, "trap '' TERM; echo > $READY$CAIRN_RANK; while true; do sleep 0.02; done");
  options.grace = 200ms;
  const Ended ended = run_and_stop(options);
  EXPECT_EQ(ended.code, 4);
  EXPECT_THAT(ended.log, HasSubstr("still running after the grace time"));
}

TEST(Agent, KillsTheRestSomeTimeAfterTheFirstFailure) {
  AgentOptions options = shell(2, "if [ $CAIRN_RANK = 0 ]; then exit 3; fi; while true; do sleep 0.02; done");
  options.failure_grace = 100ms;
  const Ended ended = run_to_end(options);
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.log, HasSubstr("rank 1 was killed by signal 9"));
}

TEST(Agent, StartsRanksThatFindEachOther) { EXPECT_EQ(run_to_end(self(3, "Sums")).code, 0); }

TEST(Agent, ARankKilledInACollectiveIsNamedByTheOthers) {
  const Ended ended = run_to_end(self(3, "LosesOne"));
  EXPECT_EQ(ended.code, 4);
  EXPECT_THAT(ended.log, HasSubstr("rank 1 was killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(ended.log, HasSubstr("rank 0 ended with exit code 4"));
  EXPECT_THAT(ended.log, HasSubstr("rank 2 ended with exit code 4"));
}

double seconds_of(const std::function<void()>& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// The limit of 1.8 s for a sign of life is what this test takes.
TEST(Agent, ARankThatStandsStillIsKilledAsSoonAsTheOthersHaveGivenItUp) {
  AgentOptions options = self(3, "WaitsForAStoppedRank");
  options.failure_grace = 60s;
  Ended ended;
  const std::string named = "rank 1 stands still, without a sign of life for ";
  EXPECT_LT(seconds_of([&] { ended = run_to_end(options); }), 20);
  EXPECT_EQ(ended.code, 4);
  EXPECT_THAT(ended.log, HasSubstr("rank 0 ended with exit code 4"));
  ASSERT_THAT(ended.log, HasSubstr(named));
  EXPECT_LT(std::stod(ended.log.substr(ended.log.find(named) + named.size())), 20);
  EXPECT_THAT(ended.log, HasSubstr("rank 1 was killed by signal 9"));
  EXPECT_THAT(ended.log, HasSubstr("rank 2 ended with exit code 4"));
}

TEST(Agent, ARankKilledBeforeItJoinedEndsTheRunSoon) {
  AgentOptions options = shell(2, "if [ $CAIRN_RANK = 1 ]; then kill -9 $$; fi; while true; do sleep 0.02; done");
  options.failure_grace = 60s;
  Ended ended;
  EXPECT_LT(seconds_of([&] { ended = run_to_end(options); }), 20);
  EXPECT_EQ(ended.code, 4);
  EXPECT_THAT(ended.log, HasSubstr("rank 0 was killed by signal 9"));
}

TEST(Agent, ARankKilledSoonAfterTheStartEndsTheRunSoon) {
  AgentOptions options = self(2, "ComputesWhileOneIsKilled");
  options.failure_grace = 60s;
  Ended ended;
  EXPECT_LT(seconds_of([&] { ended = run_to_end(options); }), 20);
  EXPECT_EQ(ended.code, 4);
  EXPECT_THAT(ended.log, HasSubstr("rank 1 was killed by signal 9"));
  EXPECT_THAT(ended.log, HasSubstr("rank 0 was killed by signal 9"));  // by the agent
}

TEST(Agent, AfterAStopARankMayHaveLostOneThatEndedWell) {
  const std::string waits = "echo > $READY$CAIRN_RANK; while true; do sleep 0.02; done";
  EXPECT_EQ(run_and_stop(shell(2, "trap 'exit $((CAIRN_RANK * 4))' TERM; " + waits)).code, 0);
  EXPECT_EQ(run_and_stop(shell(2, "trap 'exit 4' TERM; " + waits)).code, 4);                                      // nobody ended well
  EXPECT_EQ(run_and_stop(shell(2, "trap 'test $CAIRN_RANK = 0 || kill -9 $$; exit 0' TERM; " + waits)).code, 4);  // one was killed
}

TEST(Agent, AnIslandKilledBeforeItJoinedEndsAllIslands) {
  AgentOptions options = shell(2, "if [ $CAIRN_RANK = 1 ]; then kill -9 $$; fi; while true; do sleep 0.02; done");
  options.islands = 2;
  options.failure_grace = 60s;
  EXPECT_EQ(run_to_end(options).code, 4);
}

// The rank is stopped before it can handle a stop: the signal waits for the handler.
TEST(Agent, AStopThatComesBeforeARankHandlesItWaits) {
  AgentOptions options = self(1, "HandlesAStopLate");
  options.hold_stop = true;
  EXPECT_EQ(run_and_stop(options).code, 5);
}

TEST(Agent, ASetUpThatIsNoneIsRefused) {
  const auto refused = [](const std::string& content) {
    const auto path = std::filesystem::temp_directory_path() / ("cairn-setup-" + std::to_string(::getpid()));
    std::ofstream(path) << content;
    FILE* file = std::fopen(path.c_str(), "r");
    const int fd = ::dup(::fileno(file));
    std::fclose(file);
    std::filesystem::remove(path);
    try {
      inherited_setup(fd);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused(""), HasSubstr("too short for the set-up of a rank: this process was not started by cairn's agent"));
  EXPECT_THAT(refused(std::string(100, 'x')), HasSubstr("not the set-up of a rank"));
  EXPECT_THROW(inherited_setup(-1), Error);
}

}  // namespace
}  // namespace cairn::train
