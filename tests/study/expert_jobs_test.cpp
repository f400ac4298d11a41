#include "study/expert_jobs.h"

#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "harness/scratch_folder.h"

namespace cairn::study {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// A program in Cairn's place that writes down what it was given: `train RECIPE --out DIR --resume auto ARGUMENTS`.
class ExpertJobs : public testing::Test {
 protected:
  ExpertJobsOptions options(const std::string& body, std::vector<IslandHost> hosts) {
    const std::string path = scratch_.file("program", "#!/bin/sh\nout=$4\nmkdir -p $out\n" + body + "\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return {.program = path, .recipe = scratch_ / "recipe.toml", .hosts = std::move(hosts), .restarts = 2};
  }

  ExpertJob job(const std::string& name, double flops, std::vector<std::string> runs, int64_t bytes = 0) {
    ExpertJob made{.name = name, .runs = {}, .flops = flops, .bytes = bytes};
    for (const std::string& run : runs) made.runs.push_back({name + "/" + run, scratch_ / name / run, {"--set", "a=" + run}});
    return made;
  }

  std::vector<ExpertJobResult> run(const std::vector<ExpertJob>& jobs, const ExpertJobsOptions& options) {
    return run_expert_jobs(jobs, options, log_, stop_);
  }

  std::string failure(const std::vector<ExpertJob>& jobs, const ExpertJobsOptions& options) {
    try {
      run(jobs, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "ended well";
  }

  harness::ScratchFolder scratch_;
  base::Log log_ = base::Log::quiet();
  base::Stop stop_;
};

TEST_F(ExpertJobs, RunAChainInOrderEachWithItsOwnArguments) {
  const ExpertJobsOptions with = options("echo \"$@\" >> $out/../calls", {{{"here"}}});
  const std::vector<ExpertJobResult> ended = run({job("x", 1, {"1", "2"})}, with);
  EXPECT_EQ(ended[0].island, "here");
  EXPECT_EQ(ended[0].restarts, 0);
  const std::string before = "train " + (scratch_ / "recipe.toml").string() + " --out " + (scratch_ / "x").string();
  EXPECT_EQ(scratch_.text_of("x/calls"), before + "/1 --resume auto --set a=1\n" + before + "/2 --resume auto --set a=2\n");
}

TEST_F(ExpertJobs, StartALostOneAgainElsewhereAndTouchNoOther) {
  // The first process of job x kills itself.
  ExpertJobsOptions with = options("echo >> $out/tries; case $out in */x/1) test $(wc -l < $out/tries) -gt 1 || kill -9 $$;; esac",
                                   {{{"a", 1, 0}}, {{"b", 1, 0}}, {{"too small", 1, 5}}});
  std::mutex mutex;
  std::vector<std::string> started;
  with.on_start = [&](const std::string& run, int64_t attempt, int) {
    const std::lock_guard lock(mutex);
    started.push_back(run + " " + std::to_string(attempt));
  };
  const std::vector<ExpertJobResult> ended = run({job("x", 9, {"1", "2"}, 10), job("y", 5, {"1"}, 10)}, with);
  EXPECT_EQ(ended[0].restarts, 1);
  EXPECT_EQ(ended[0].island, "b");  // it was on a
  EXPECT_EQ(ended[1].restarts, 0);
  EXPECT_THAT(started, UnorderedElementsAre("x/1 0", "x/1 1", "x/2 0", "y/1 0"));
}

TEST_F(ExpertJobs, GiveUpAfterSoManyRestartsAndSayHowItEnded) {
  const std::string said = failure({job("x", 1, {"1"})}, options("echo no disk; exit 3", {{{"here"}}}));
  EXPECT_THAT(said, HasSubstr("x/1: lost 3 times (exit code 3): no disk"));
}

TEST_F(ExpertJobs, AreNotStartedAgainForWrongInput) {
  const std::string said = failure({job("x", 1, {"1"})}, options("echo >> $out/tries; echo no such key; exit 2", {{{"here"}}}));
  EXPECT_THAT(said, HasSubstr("x/1: no such key"));
  EXPECT_EQ(scratch_.text_of("x/1/tries"), "\n");
}

TEST_F(ExpertJobs, AreGoneOnWithWhereTheyWereAskedToStopAndLeftAloneWhereTheyAreDone) {
  ExpertJob one = job("x", 1, {"1"});
  one.runs[0].steps = 7;
  const ExpertJobsOptions with = options(
      "echo >> $out/tries; touch $out/ledger.json; test $(wc -l < $out/tries) -gt 1 || exit 0; mkdir -p $out/snapshots/step-00000007",
      {{{"here"}}});
  EXPECT_EQ(run({one}, with)[0].restarts, 1);
  EXPECT_EQ(run({one}, with)[0].restarts, 0);
  EXPECT_EQ(scratch_.text_of("x/1/tries"), "\n\n");
}

TEST_F(ExpertJobs, MayNotShareADirectory) {
  EXPECT_THAT(failure({job("x", 1, {"1"}), job("y", 1, {"../x/1"})}, options("true", {{{"here"}}})), HasSubstr("another run writes to"));
}

TEST_F(ExpertJobs, AreStartedByWhatTheirIslandSays) {
  const IslandHost host{.island = {"far"}, .cores = {}, .launch = {"env", "PLACE=far"}, .device = "cuda"};
  run({job("x", 1, {"1"})}, options("echo $PLACE $7 $8 > $out/place", {host}));
  EXPECT_EQ(scratch_.text_of("x/1/place"), "far --device cuda\n");
}

TEST_F(ExpertJobs, KeepToTheCoresOfTheirIsland) {
  const IslandHost host{.island = {"one core"}, .cores = {0}};
  run({job("x", 1, {"1"})}, options("nproc > $out/cores", {host}));
  EXPECT_EQ(scratch_.text_of("x/1/cores"), "1\n");
}

}  // namespace
}  // namespace cairn::study
