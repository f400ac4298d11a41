#include "train/bad_steps.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "train/options.h"
#include "train/train.h"

namespace cairn::train {
namespace {

constexpr float kOverflows = 3e38f;  // a weight that makes the loss of a sample infinite in single precision

// 5 samples a step, in order, at a constant learning rate. A run that leaves a step out then equals a run without its samples.
base::Recipe bad_recipe(int64_t steps, const std::string& train, double learning_rate = 0.003) {
  base::Recipe recipe = base::Recipe::parse(fmt::format(R"(
    model = {{layers = 1, embed = 16, heads = 2, kv_heads = 1, mlp = 24}}
    data = {{vocab = 260, length = 12, stories_bytes = 20000, sampler = "sequential"}}
    optim = {{warmup_steps = 0, schedule = "constant"}}
    snapshot = {{every = 4, keep = 9}}
    log = {{tensorboard = false, trace = false, samples = 0}}
    eval = {{every = 0, samples = 2}}
    [train]
    global_batch = 5
    {}
  )",
                                                        train),
                                            "bad.toml");
  recipe.set("train.steps", steps, "test");
  recipe.set("optim.learning_rate", learning_rate, "test");
  return recipe;
}

// The samples 0 .. 119 without some of them; one sample has a weight other than 1.
data::Subset samples(int64_t without_from, int64_t without_to, int64_t heavy = -1, float weight = 1) {
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 120; ++id)
    if (id < without_from || id >= without_to) ids.push_back(id);
  std::vector<float> weights(ids.size(), 1.0f);
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] == heavy) weights[i] = weight;
  return data::Subset::of(ids, weights);
}

struct Trained {
  std::vector<double> losses;
  std::vector<int64_t> skipped;  // steps
  harness::Run run;
};

struct BadRun {
  bool resume = false;
  bool expect_errors = false;
  double learning_rate = 0.003;
};

Trained train_badly(int ranks, const std::filesystem::path& out, int64_t steps, const std::string& train, const data::Subset& subset,
                    BadRun options = {}) {
  const base::Stop never;
  harness::Run run = harness::on_ranks(ranks, {.expect_errors = options.expect_errors}, [&](comm::World& world) {
    Start start;
    start.out = out;
    start.resume = options.resume;
    train::run(world, bad_recipe(steps, train, options.learning_rate), start, subset, never);
  });
  Trained trained{{}, {}, std::move(run)};
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) {
    trained.losses.push_back(row.number("loss"));
    if (row.has("skipped")) trained.skipped.push_back(row.integer("step"));
  }
  return trained;
}

void drop_snapshots_after(const std::filesystem::path& run, int64_t step) {
  for (const auto& entry : std::filesystem::directory_iterator(run / "snapshots"))
    if (std::stoll(entry.path().filename().string().substr(5)) > step) std::filesystem::remove_all(entry.path());
}

TEST(BadSteps, ASkippedStepLeavesNoTraceInTheModelOnOneRankAndTwo) {
  const harness::ScratchFolder scratch;
  for (int ranks : {1, 2}) {
    const std::string n = std::to_string(ranks);
    // Sample 12 comes in step 3, whose samples are 10 to 14.
    const Trained bad = train_badly(ranks, scratch / ("bad" + n), 8, "on_bad_step = \"skip\"", samples(0, 0, 12, kOverflows));
    const Trained without = train_badly(ranks, scratch / ("without" + n), 7, "", samples(10, 15));
    ASSERT_EQ(bad.losses.size(), 8u);
    EXPECT_THAT(bad.skipped, testing::ElementsAre(3));
    EXPECT_FALSE(std::isfinite(bad.losses[2]));
    std::vector<double> left = bad.losses;
    left.erase(left.begin() + 2);
    EXPECT_EQ(left, without.losses);
  }
}

TEST(BadSteps, ARollbackGoesBackAndOnBehindTheBadStepOnOneRankAndTwo) {
  const harness::ScratchFolder scratch;
  for (int ranks : {1, 2}) {
    const std::string n = std::to_string(ranks);
    // Sample 27 comes in step 6; the last snapshot is of step 4, so that samples 20 to 29 are left out.
    const Trained bad = train_badly(ranks, scratch / ("bad" + n), 10, "on_bad_step = \"rollback\"", samples(0, 0, 27, kOverflows));
    EXPECT_EQ(bad.losses, train_badly(ranks, scratch / ("without" + n), 10, "", samples(20, 30)).losses);
    EXPECT_EQ(bad.losses.size(), 10u);
  }
}

TEST(BadSteps, ARollbackBeforeTheFirstSnapshotGoesBackToTheStart) {
  const harness::ScratchFolder scratch;
  const Trained bad = train_badly(2, scratch / "bad", 5, "on_bad_step = \"rollback\"", samples(0, 0, 7, kOverflows));
  EXPECT_EQ(bad.losses, train_badly(2, scratch / "without", 5, "", samples(0, 10)).losses);
}

TEST(BadSteps, RunsThatSkippedOrRolledBackContinueBitForBit) {
  const harness::ScratchFolder scratch;
  for (const char* policy : {"skip", "rollback"}) {
    const std::string train = fmt::format("on_bad_step = \"{}\"\nspike_factor = 4.0", policy);
    const data::Subset subset = samples(0, 0, 52, 1e4f);  // a spike in step 11
    const std::vector<double> whole = train_badly(2, scratch / policy, 16, train, subset).losses;
    drop_snapshots_after(scratch / policy, 12);
    EXPECT_EQ(train_badly(2, scratch / policy, 16, train, subset, {.resume = true}).losses, whole) << policy;
    drop_snapshots_after(scratch / policy, 8);  // resumes before the spike
    EXPECT_EQ(train_badly(2, scratch / policy, 16, train, subset, {.resume = true}).losses, whole) << policy;
  }
}

TEST(BadSteps, ASpikeStopsTheRunWithItsNumbers) {
  const harness::ScratchFolder scratch;
  const Trained spike = train_badly(2, scratch / "run", 16, "spike_factor = 4.0", samples(0, 0, 52, 1e4f), {.expect_errors = true});
  for (int rank : {0, 1}) {
    EXPECT_EQ(spike.run.error_on(rank).kind(), Error::Kind::diverged);
    EXPECT_THAT(
        spike.run.error_on(rank).what(),
        testing::AllOf(testing::HasSubstr("step 11: the loss "), testing::HasSubstr("train.spike_factor = 4 times"),
                       testing::HasSubstr("median over the last 10 good steps"), testing::HasSubstr("lower optim.learning_rate = 0.003"),
                       testing::HasSubstr("set train.on_bad_step to skip or rollback")));
  }
}

TEST(BadSteps, ARunThatCannotRecoverStops) {
  const harness::ScratchFolder scratch;
  const auto message = [&](const char* name, const std::string& train) {
    const Trained ended =
        train_badly(2, scratch / name, 12, train + "\nbad_steps_max = 2", samples(0, 0), {.expect_errors = true, .learning_rate = 1e30});
    EXPECT_EQ(ended.run.error_on(1).kind(), Error::Kind::diverged);
    return std::string(ended.run.error_on(1).what());
  };
  EXPECT_THAT(message("skip", "on_bad_step = \"skip\""), testing::HasSubstr("the last of 2 bad steps in a row (train.bad_steps_max)"));
  EXPECT_THAT(message("rollback", "on_bad_step = \"rollback\""), testing::HasSubstr("after 2 rollbacks (train.bad_steps_max)"));
}

TEST(BadSteps, RefusesAFactorThatOrdinaryStepsExceedAndWaitsThatAreForbidden) {
  const harness::ScratchFolder scratch;
  const auto message = [&](const std::string& more) {
    const harness::Run ended = harness::on_ranks(1, {.expect_errors = true}, [&](comm::World& world) {
      const base::Stop never;
      base::Recipe recipe = bad_recipe(2, "");
      recipe.set("train.on_bad_step", std::string("skip"), "test");
      recipe.set(more);
      train::run(world, std::move(recipe), {}, {}, never);
    });
    EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::bad_input);
    return std::string(ended.error_on(0).what());
  };
  EXPECT_THAT(message("train.spike_factor=0.5"), testing::HasSubstr("train.spike_factor = 0.5: must be more than 1, or 0"));
  EXPECT_THAT(message("log.sync_check=true"), testing::HasSubstr("which log.sync_check = true forbids"));
}

// One rank has the bad number; both ranks decide by the sum.
TEST(BadSteps, AreJudgedByNumbersOfAllRanks) {
  harness::on_ranks(2, [](comm::World& world) {
    TrainOptions options;
    options.on_bad_step = OnBadStep::skip;
    options.spike_factor = 3;
    BadSteps bad(world.everyone(), options, 0.1);
    const at::Tensor norm = at::scalar_tensor(1.0, at::kDouble);
    const auto loss = [&](double first, double second) { return at::scalar_tensor(world.rank() == 0 ? first : second, at::kDouble); };
    EXPECT_FALSE(bad.approve(10, loss(std::numeric_limits<double>::quiet_NaN(), 20), norm));
    EXPECT_EQ(bad.fault(), "the loss became nan");
    EXPECT_FALSE(bad.approve(10, loss(10, 10), at::scalar_tensor(std::numeric_limits<double>::infinity(), at::kDouble)));
    EXPECT_EQ(bad.fault(), "the gradient norm became inf");
    for (int64_t i = 0; i < BadSteps::kLeast; ++i) EXPECT_TRUE(bad.approve(10, loss(10, 10), norm)) << i;  // 2 a token
    EXPECT_TRUE(bad.approve(10, loss(0, 59), norm));
    EXPECT_FALSE(bad.approve(10, loss(0, 61), norm));
    EXPECT_THAT(bad.fault(), testing::HasSubstr("the loss 6.1 is more than train.spike_factor = 3 times 2, its median over the last 9"));
    EXPECT_FALSE(bad.approve(10, loss(10, 10), at::scalar_tensor(3.5, at::kDouble)));
    EXPECT_THAT(bad.fault(), testing::HasSubstr("the gradient norm 3.5 is more than"));
    EXPECT_TRUE(bad.approve(10, loss(10, 10), norm));
    EXPECT_EQ(bad.fault(), "");
  });
}

}  // namespace
}  // namespace cairn::train
