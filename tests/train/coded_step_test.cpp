// train.method = "coded" through the trainer: the results of plain data parallelism, in time although ranks are late, and refusals.
#include <algorithm>
#include <filesystem>

#include <ATen/core/IListRef.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "small_decoder.h"
#include "train/build.h"
#include "train/settings.h"
#include "train/take_step.h"
#include "train_on.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

base::Recipe with(std::vector<std::string> more) {
  std::vector<std::string> sets{"train.steps=4", "train.global_batch=11", "train.micro_batch=2", "eval.every=0"};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

// A run on so many ranks; returns the virtual time at its end.
double seconds_on(int ranks, const base::Recipe& recipe, const std::filesystem::path& out) {
  double seconds = 0;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run([&](comm::World& world) {
         run(world, recipe, {.out = out, .cache = {}, .terminal = nullptr}, {}, base::Stop());
         if (world.rank() == 0) seconds = base::seconds(world.clock().now());
       }))
    if (error) std::rethrow_exception(error);
  return seconds;
}

std::vector<double> column(const std::filesystem::path& out, const char* name) {
  std::vector<double> values;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) values.push_back(row.number(name));
  return values;
}

TEST(CodedStep, GivesTheLossesOfPlainDataParallelism) {
  const harness::ScratchFolder folder;
  const std::vector<double> plain = losses_on(1, with({}), folder / "plain");
  for (const auto& [ranks, stragglers, code] :
       {std::tuple(2, 1, "auto"), std::tuple(3, 1, "auto"), std::tuple(4, 1, "repetition"), std::tuple(4, 2, "random"),
        std::tuple(5, 2, "auto"), std::tuple(6, 2, "auto"), std::tuple(7, 3, "random")}) {
    const std::filesystem::path out = folder / fmt::format("{}-{}", ranks, stragglers);
    const std::vector<double> coded =
        losses_on(ranks,
                  with({"train.method=coded", fmt::format("train.coded.stragglers={}", stragglers),
                        fmt::format("train.coded.code={}", code), "train.coded.slow_enter=0.3", "train.coded.slow_s=3"}),
                  out);
    ASSERT_EQ(coded.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(coded[i], plain[i], 1e-5) << ranks << ' ' << stragglers << ' ' << i;
    const std::vector<double> late = column(out, "coded_late");
    EXPECT_GT(*std::max_element(late.begin(), late.end()), 0) << ranks;  // or the test shows nothing
  }
}

TEST(CodedStep, ASlowRankDoesNotHoldUpTheStep) {
  const harness::ScratchFolder folder;
  const std::vector<std::string> slow{"train.method=coded", "train.coded.slow_enter=0.1", "train.coded.slow_leave=0.9",
                                      "train.coded.slow_s=50", "train.steps=12"};
  const auto run_with = [&](int stragglers, const char* name) {
    std::vector<std::string> sets = slow;
    sets.push_back(fmt::format("train.coded.stragglers={}", stragglers));
    return seconds_on(6, with(sets), folder / name);
  };
  const double waits = run_with(0, "plain"), coded = run_with(3, "coded");
  EXPECT_GT(waits, 100);  // some step has a slow rank, or the test shows nothing
  EXPECT_LT(coded, 5);
  const std::vector<double> one = column(folder / "plain", "loss"), other = column(folder / "coded", "loss");
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], 1e-5);
}

TEST(CodedStep, WaitsForLateRanksAsLongAsMuSays) {
  const harness::ScratchFolder folder;
  std::vector<std::string> sets{"train.method=coded", "train.coded.slow_enter=1", "train.coded.slow_leave=0", "train.coded.slow_s=2"};
  seconds_on(4, with(sets), folder / "all slow");  // all are late by the same time
  sets.push_back("train.coded.mu=1");
  seconds_on(4, with(sets), folder / "mu");
  for (const double late : column(folder / "mu", "coded_late")) EXPECT_EQ(late, 0);
}

TEST(CodedStep, EveryRankComputesStragglersPlusOneShares) {
  const harness::ScratchFolder folder;
  seconds_on(5, with({"train.method=coded", "train.coded.stragglers=2", "train.coded.mu=100", "train.global_batch=15"}), folder / "run");
  for (const double samples : column(folder / "run", "coded_samples")) EXPECT_EQ(samples, 9);
}

TEST(CodedStep, KeepsTheSameBitsOnAllRanksAlsoOnThoseThatWereLate) {
  std::vector<at::Tensor> parameters(5);
  int64_t late = 0;
  for (const std::exception_ptr& error : comm::LocalNetwork(5).run([&](comm::World& world) {
         const auto job = build(world, with({"train.method=coded", "train.coded.stragglers=2", "train.coded.slow_enter=0.4"}),
                                {.out = {}, .cache = {}, .terminal = nullptr}, {});
         for (job->progress.steps_done = 0; job->progress.steps_done < 4; ++job->progress.steps_done) {
           take_step(*job);
           if (world.rank() == 0) late += static_cast<int64_t>(job->step->metrics()[1].second);
         }
         at::Tensor all = at::zeros({0});
         for (const mesh::NamedTensor& one : job->engine.trained.values) all = at::cat({all, one.tensor.view({-1})});
         parameters[static_cast<size_t>(world.rank())] = all.clone();
       }))
    if (error) std::rethrow_exception(error);
  EXPECT_GT(late, 4);
  for (const at::Tensor& one : parameters) EXPECT_TRUE(at::equal(one, parameters[0]));
}

TEST(CodedStep, ResumesBitwiseIdentical) {
  const harness::ScratchFolder folder;
  const base::Recipe recipe = with({"train.method=coded", "train.coded.stragglers=1", "train.coded.mu=1000"});
  base::Recipe saved = recipe;
  saved.set("snapshot.every=2");
  train_on(4, saved, folder / "whole");
  std::filesystem::copy(folder / "whole", folder / "parts", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(folder / "parts/snapshots/step-00000004");
  const std::vector<double> whole = column(folder / "whole", "loss"), again = losses_on(4, recipe, folder / "parts", /*resume=*/true);
  EXPECT_EQ(whole, again);
}

std::string coded_refusal(int ranks, std::vector<std::string> more) {
  more.push_back("train.method=coded");
  try {
    check_recipe(with(more), ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "";
}

TEST(CodedStep, RefusesWhatItCannotDoAndSaysWhatToDo) {
  EXPECT_EQ(coded_refusal(4, {}), "");
  EXPECT_THAT(coded_refusal(4, {"train.coded.stragglers=4"}),
              HasSubstr("train.coded.stragglers = 4: 4 workers, and at least one must not be late"));
  EXPECT_THAT(coded_refusal(5, {"train.coded.code=repetition"}), HasSubstr("use code = random"));
  EXPECT_THAT(coded_refusal(4, {"memory.zero=1"}),
              HasSubstr("memory.zero = 1: does not work with train.method = coded: gradients are sharded"));
  EXPECT_THAT(coded_refusal(4, {"memory.zero=3"}), HasSubstr("use memory.zero = 0"));
  EXPECT_THAT(coded_refusal(4, {"mesh.tp=2"}), HasSubstr("a rank that gives up must leave no other rank waiting"));
  EXPECT_THAT(coded_refusal(4, {"mesh.pp=2"}), HasSubstr("use mesh.dp alone"));
  EXPECT_THAT(coded_refusal(4, {"mesh.island=2", "sync.island.kind=diloco"}), HasSubstr("one batch at the same weights on all ranks"));
  EXPECT_THAT(coded_refusal(4, {"train.gradients=bf16", "train.precision=bf16"}), HasSubstr("train.gradients = fp32"));
  EXPECT_THAT(coded_refusal(4, {"train.check_every=2"}), HasSubstr("leave it out"));
}

}  // namespace
}  // namespace cairn::train
