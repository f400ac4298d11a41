// An agent and its ranks as real processes: one of them stands still.
#include "train/diagnosis/rank_diagnosis.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/run_events.h"
#include "base/stop.h"
#include "comm/flight/recorder.h"
#include "comm/transport.h"
#include "comm/world.h"
#include "elastic/diagnosis/view_file.h"
#include "harness/scratch_folder.h"
#include "train/agent.h"

namespace cairn::train {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

// What the ranks do: pairs sum, then all. Rank 2 stops before the third round, in one way or another; only rank 3 waits for it at first.
void sum_until(const std::function<void()>& stop) {
  comm::World world(comm::make_net_transport(inherited_setup(std::atoi(std::getenv("CAIRN_SETUP_FD")))), {.deadline = 20s});
  comm::FlightRecorder& flight = *world.transport().recorder();
  flight.set_run(std::getenv("RUN"));
  flight.set_activity(comm::Activity::computing);
  comm::Group& pair = world.rank() < 2 ? world.group({0, 1}, "pair") : world.group({2, 3}, "pair");
  std::vector<float> x(100, 1);
  try {
    for (int round = 0;; ++round) {
      if (round == 2 && world.rank() == 2) stop();
      pair.all_reduce({x.data(), 100}, comm::Reduce::sum, {comm::Purpose::gradient, "x"}).wait();
      world.everyone().barrier("a round").wait();
    }
  } catch (const Error& error) {
    world.fail(error);
    ::_exit(error.exit_code());
  }
}

TEST(DiagnosedRank, DISABLED_Freezes) {
  sum_until([] { ::kill(::getpid(), SIGSTOP); });
}

TEST(DiagnosedRank, DISABLED_Spins) {
  sum_until([] {
    const auto begun = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begun < 8s) std::this_thread::yield();
    ::_exit(4);
  });
}

struct Diagnosed {
  std::string log;
  std::vector<base::Json> events;
  std::vector<elastic::RankView> records;
};

Diagnosed run_four(const std::string& what, bool enabled = true) {
  const harness::ScratchFolder run;
  AgentOptions options;
  options.setups = comm::make_net_setups(4);
  options.argv = {std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_also_run_disabled_tests",
                  "--gtest_filter=DiagnosedRank.DISABLED_" + what, "--gtest_brief=1"};
  options.env = {{"RUN", run.path().string()}};
  options.failure_grace = 5s;
  options.diagnosis = {.enabled = enabled, .hang_s = what == "Spins" ? 1.0 : 5.0};
  base::Log log = base::Log::capture();
  EXPECT_EQ(run_ranks(options, log, base::Stop()), 4);
  Diagnosed found{"", base::read_events(run.path()), elastic::read_views(run.path())};
  for (const std::string& line : log.lines()) found.log += line + "\n";
  return found;
}

TEST(RankDiagnosis, NamesARankThatStandsStill) {
  const Diagnosed found = run_four("Freezes");
  EXPECT_THAT(found.log, HasSubstr("[0] warn: cairn: frozen: rank 2 on "));
  ASSERT_EQ(found.events.size(), 1u);
  EXPECT_EQ(found.events[0].value("event", ""), "diagnosis");
  EXPECT_EQ(found.events[0].value("cause", ""), "frozen");
  EXPECT_EQ(found.events[0].value("rank", -1), 2);
  ASSERT_EQ(found.records.size(), 4u);
  EXPECT_EQ(found.records[2].liveness, elastic::Liveness::frozen);
}

TEST(RankDiagnosis, NamesARankThatLivesAndDoesNotCome) {
  const Diagnosed found = run_four("Spins");
  EXPECT_THAT(found.log, HasSubstr("[0] warn: cairn: stuck: rank 2 on "));
  EXPECT_THAT(found.log, HasSubstr("ranks 0 1 3 wait in all_reduce of x, 400 bytes (operation 2 of pair: ranks 2 3)"));
  ASSERT_GE(found.events.size(), 1u);
  EXPECT_EQ(found.events[0].value("cause", ""), "stuck");
  EXPECT_EQ(found.events[0].value("rank", -1), 2);
}

TEST(RankDiagnosis, IsSilentWhereItIsNotEnabled) {
  const Diagnosed found = run_four("Freezes", /*enabled=*/false);
  EXPECT_THAT(found.log, Not(HasSubstr("cairn: ")));
  EXPECT_TRUE(found.events.empty());
  EXPECT_TRUE(found.records.empty());
}

}  // namespace
}  // namespace cairn::train
