// Restart in place: runs that lose ranks from outside and go on by themselves.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/run_events.h"
#include "program.h"
#include "rank_processes.h"
#include "running.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

std::vector<std::string> restarting(const std::string& out, const std::string& ranks, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = tiny(
      {"train", "--out", out, "--nproc", ranks, "--set", "train.steps=60", "--set", "snapshot.every=7", "--set", "train.on_loss=restart"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Every step once, in order.
void expect_each_step_once(const std::filesystem::path& run, int64_t steps) {
  std::vector<int64_t> seen, expected;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl")) seen.push_back(row.integer("step"));
  for (int64_t step = 1; step <= steps; ++step) expected.push_back(step);
  EXPECT_EQ(seen, expected);
}

std::vector<double> undisturbed(const harness::ScratchFolder& scratch, const std::string& ranks) {
  const Outcome whole = cairn(scratch, restarting("whole", ranks));
  EXPECT_EQ(whole.code, 0) << whole.output;
  EXPECT_FALSE(std::filesystem::exists(scratch / "whole" / "snapshots" / "none"));
  return losses_in(scratch / "whole");
}

TEST(Restart, AKilledRankIsStartedAgainAndTheLossesAreThoseOfAnUndisturbedRun) {
  const harness::ScratchFolder scratch;
  const std::vector<double> whole = undisturbed(scratch, "2");
  Running running(scratch, restarting("run", "2"));
  ASSERT_TRUE(reaches(scratch / "run", 17)) << scratch.text_of("background.txt");
  const pid_t victim = process_of_rank("1", scratch.path().string());
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  EXPECT_EQ(running.wait(), 0) << scratch.text_of("background.txt");
  EXPECT_EQ(losses_in(scratch / "run"), whole);
  expect_each_step_once(scratch / "run", 60);
  const auto lost = events_of(scratch / "run", "rank_lost");
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0]["rank"], 1);
  EXPECT_EQ(lost[0]["signal"], SIGKILL);
  EXPECT_EQ(lost[0]["pid"], victim);
  EXPECT_EQ(lost[0]["cause"], "killed");
  const auto restored = events_of(scratch / "run", "restored");
  ASSERT_EQ(restored.size(), 1u) << scratch.text_of("run/events.jsonl");
  EXPECT_EQ(restored[0]["source"], "disk");
  EXPECT_GE(restored[0]["step"], 14);
  EXPECT_EQ(restored[0]["step"].get<int64_t>() % 7, 0);
  EXPECT_EQ(events_of(scratch / "run", "generation_started").size(), 2u);
}

TEST(Restart, AllRanksKilledThenAFrozenOne) {
  const harness::ScratchFolder scratch;
  const std::vector<double> whole = undisturbed(scratch, "3");
  Running running(scratch, restarting("run", "3"));
  ASSERT_TRUE(reaches(scratch / "run", 9)) << scratch.text_of("background.txt");
  for (const pid_t victim : processes_of_ranks(scratch.path().string())) kill(victim, SIGKILL);
  ASSERT_TRUE(comes([&] { return !events_of(scratch / "run", "restored").empty(); })) << scratch.text_of("background.txt");
  ASSERT_TRUE(reaches(scratch / "run", 20)) << scratch.text_of("background.txt");
  kill(process_of_rank("2", scratch.path().string()), SIGSTOP);
  EXPECT_EQ(running.wait(), 0) << scratch.text_of("background.txt");
  EXPECT_EQ(losses_in(scratch / "run"), whole);
  const auto lost = events_of(scratch / "run", "rank_lost");
  ASSERT_EQ(lost.size(), 2u) << scratch.text_of("run/events.jsonl");
  EXPECT_EQ(lost[1]["rank"], 2);
  EXPECT_EQ(lost[1]["cause"], "frozen");
}

TEST(Restart, WithoutASnapshotTheRunStartsFromTheBeginningAndSaysSo) {
  const harness::ScratchFolder scratch;
  const std::vector<double> whole = undisturbed(scratch, "2");
  Running running(scratch, restarting("run", "2", {"--set", "snapshot.every=0"}));
  ASSERT_TRUE(reaches(scratch / "run", 5)) << scratch.text_of("background.txt");
  kill(process_of_rank("0", scratch.path().string()), SIGKILL);
  EXPECT_EQ(running.wait(), 0) << scratch.text_of("background.txt");
  EXPECT_EQ(losses_in(scratch / "run"), whole);
  EXPECT_THAT(scratch.text_of("background.txt"), HasSubstr("the run starts from the beginning"));
  EXPECT_EQ(events_of(scratch / "run", "restored").at(0)["source"], "start");
}

TEST(Restart, ARunThatCrashesAtEveryStartEndsWithTheFirstErrorAfterItsBudget) {
  const harness::ScratchFolder scratch;
  Running running(scratch, restarting("run", "2", {"--set", "train.max_restarts=2", "--set", "train.steps=100000"}));
  std::jthread killer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const pid_t victim = process_of_rank("1", scratch.path().string());
      if (victim > 0) kill(victim, SIGSEGV);
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(running.wait(), 4) << scratch.text_of("background.txt");
  const std::string said = scratch.text_of("background.txt");
  EXPECT_THAT(said, HasSubstr("train.max_restarts = 2: rank 1 was killed by signal 11 (SIGSEGV): 2 restarts without getting beyond"));
  EXPECT_EQ(events_of(scratch / "run", "rank_lost").size(), 3u);
  EXPECT_EQ(events_of(scratch / "run", "gave_up").size(), 1u);
}

TEST(Restart, WrongInputIsNotTriedAgain) {
  const harness::ScratchFolder scratch;
  const Outcome refused = cairn(scratch, restarting("run", "2", {"--set", "train.global_batch=1000000"}));
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_TRUE(events_of(scratch / "run", "rank_lost").size() <= 1);
  EXPECT_EQ(refused.output.find("generation 2"), std::string::npos) << refused.output;
}

TEST(Restart, AStopDuringTheRestartEndsTheRunCleanly) {
  const harness::ScratchFolder scratch;
  Running running(scratch, restarting("run", "2", {"--set", "train.steps=100000"}));
  ASSERT_TRUE(reaches(scratch / "run", 9)) << scratch.text_of("background.txt");
  kill(process_of_rank("1", scratch.path().string()), SIGKILL);
  ASSERT_TRUE(comes([&] { return scratch.text_of("background.txt").find("as generation 2") != std::string::npos; }));
  EXPECT_EQ(running.end(SIGTERM), 0) << scratch.text_of("background.txt");
  const Outcome resumed = cairn(scratch, {"train", "--resume", "run", "--nproc", "2", "--set",
                                          "train.steps=" + std::to_string(losses_in(scratch / "run").size() + 3)});
  EXPECT_EQ(resumed.code, 0) << resumed.output;
}

// Kills at moments of a save: between the first piece and the rename.
TEST(Restart, ARankKilledDuringASaveLosesNoStepsTwice) {
  const harness::ScratchFolder scratch;
  const std::vector<double> whole = undisturbed(scratch, "2");
  Running running(scratch, restarting("run", "2", {"--set", "snapshot.every=1"}));
  const auto saving = [&] {
    std::error_code gone;
    for (std::filesystem::directory_iterator it(scratch / "run" / "snapshots", gone), end; !gone && it != end; it.increment(gone))
      if (it->path().filename().string().starts_with(".writing")) return losses_in(scratch / "run").size() >= 4;
    return false;
  };
  ASSERT_TRUE(comes(saving)) << scratch.text_of("background.txt");
  kill(process_of_rank("0", scratch.path().string()), SIGKILL);
  EXPECT_EQ(running.wait(), 0) << scratch.text_of("background.txt");
  EXPECT_EQ(losses_in(scratch / "run"), whole);
  EXPECT_EQ(events_of(scratch / "run", "restored").size(), 1u);
}

TEST(Restart, IsRefusedWhereNoAgentCanDoIt) {
  const harness::ScratchFolder scratch;
  const Outcome threads = cairn(scratch, restarting("run", "2", {"--transport", "local"}));
  EXPECT_EQ(threads.code, 2);
  EXPECT_THAT(threads.output, HasSubstr("train.on_loss = restart: ranks are threads of one process"));
  const Outcome islands = cairn(scratch, restarting("run", "2", {"--islands", "2", "--sync", "diloco", "--set", "train.global_batch=6"}));
  EXPECT_EQ(islands.code, 2);
  EXPECT_THAT(islands.output, HasSubstr("islands that step separately go on without one that is lost"));
}

}  // namespace
}  // namespace cairn::cli
