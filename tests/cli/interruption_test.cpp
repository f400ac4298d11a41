// Runs that are killed or asked to stop, and what is left to continue from.
#include <chrono>
#include <filesystem>
#include <functional>
#include <signal.h>
#include <thread>

#include <gtest/gtest.h>

#include "program.h"
#include "rank_processes.h"
#include "running.h"

namespace cairn::cli {
namespace {

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

// A stop before the first step has nothing to save. The moments are those that a test can see from outside.
TEST(EarlyStop, IsCleanAtAnyTimeOfTheStart) {
  const harness::ScratchFolder scratch;
  const std::string folder = scratch.path().string();
  const auto begun = [&](const char* word) { return scratch.text_of("background.txt").find(word) != std::string::npos; };
  const std::vector<std::function<bool()>> moments{
      [&] { return std::filesystem::exists(scratch / "run0"); },  // the run directory was just made
      [&] { return begun("training "); },                         // the agent starts its ranks
      [&] { return process_of_rank("1", folder) > 0; },           // a rank is there, and cannot handle signals yet
      [&] { return std::filesystem::exists(scratch / "run3" / "recipe.toml"); }};
  for (size_t i = 0; i < moments.size(); ++i) {
    std::filesystem::remove(scratch / "background.txt");
    Running running(scratch, tiny({"train", "--out", "run" + std::to_string(i), "--nproc", "2", "--set", "train.steps=100000"}));
    ASSERT_TRUE(comes(moments[i])) << i << scratch.text_of("background.txt");
    EXPECT_EQ(running.end(SIGTERM), 0) << "moment " << i << ":\n" << scratch.text_of("background.txt");
  }
}

TEST(LostRank, KilledAtTheStartEndsTheRunSoon) {
  const harness::ScratchFolder scratch;
  Running running(scratch, tiny({"train", "--out", "run", "--nproc", "2", "--set", "train.steps=100000"}));
  pid_t victim = -1;
  ASSERT_TRUE(comes([&] { return (victim = process_of_rank("1", scratch.path().string())) > 0; }));
  const auto killed = std::chrono::steady_clock::now();
  kill(victim, SIGKILL);
  EXPECT_EQ(running.wait(), 4) << scratch.text_of("background.txt");
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(9)) << "(3 s on a machine that is not busy)";
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

// One island is killed and the others are asked to stop: no step has a snapshot on all islands.
TEST(LostIsland, GetsTheOthersSnapshotWhenTheRunIsResumed) {
  const harness::ScratchFolder scratch;
  for (const auto& [rule, islands] : {std::pair("diloco", "3"), std::pair("noloco", "2")}) {
    const std::string out = rule;
    Running running(scratch, tiny({"train", "--out", out, "--nproc", islands, "--islands", islands, "--sync", rule, "--set",
                                   "sync.island.every=2", "--set", "train.steps=100000", "--set", "snapshot.every=0", "--set",
                                   "train.global_batch=6", "--set", "eval.every=0"}));
    ASSERT_TRUE(reaches(scratch / out, 5)) << scratch.text_of("background.txt");
    const pid_t victim = process_of_rank("1", scratch.path().string());
    ASSERT_GT(victim, 0);
    kill(victim, SIGKILL);
    ASSERT_TRUE(comes([&] { return scratch.text_of("background.txt").find("island 1 is lost") != std::string::npos; }));
    ASSERT_TRUE(reaches(scratch / out, losses_in(scratch / out).size() + 10));
    EXPECT_EQ(running.end(SIGTERM), 0) << scratch.text_of("background.txt");
    ASSERT_FALSE(std::filesystem::exists(scratch / out / "island-1" / "snapshots"));

    const size_t done = losses_in(scratch / out).size();
    const Outcome resumed =
        cairn(scratch, {"train", "--resume", out, "--nproc", islands, "--set", "train.steps=" + std::to_string(done + 4)});
    EXPECT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_NE(resumed.output.find("island 1 had no snapshot of step " + std::to_string(done)), std::string::npos) << resumed.output;
    EXPECT_EQ(losses_in(scratch / out).size(), done + 4);
    EXPECT_TRUE(std::filesystem::exists(scratch / out / "island-1" / "snapshots"));
  }
}

}  // namespace
}  // namespace cairn::cli
