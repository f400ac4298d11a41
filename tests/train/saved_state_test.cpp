// What a run saves is good, and what goes wrong around a save loses nothing: diverged steps, full disks, deleted folders, evaluations.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/files/faulty_disk.h"
#include "base/json.h"
#include "base/metrics.h"
#include "base/stop.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "save_now.h"
#include "small_decoder.h"
#include "snapshot/snapshot.h"
#include "train/build.h"
#include "train/state/finite.h"
#include "train/state/restore.h"
#include "train/state/snapshot_writer.h"
#include "train/take_step.h"
#include "train_on.h"

namespace cairn::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

base::Recipe saved_recipe(std::vector<std::string> more) {
  std::vector<std::string> sets{"train.steps=6",        "snapshot.every=2",     "snapshot.keep=1", "data.sampler=sequential",
                                "optim.warmup_steps=0", "train.global_batch=5", "eval.every=0"};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder("llama", sets);
}

// All samples; one of them has a weight that makes the loss of its step infinite. Step s has the samples 5 (s - 1) to 5 s - 1.
data::Subset overflow_in_step(int64_t step) {
  std::vector<int64_t> ids(60);
  std::vector<float> weights(ids.size(), 1.0f);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  if (step > 0) weights.at(static_cast<size_t>(5 * step - 3)) = 3e38f;
  return data::Subset::of(ids, weights);
}

// The steps of the snapshots of a run, and whether all of their weights are finite.
std::map<int64_t, bool> saved_steps(const fs::path& run) {
  std::map<int64_t, bool> found;
  for (const snapshot::SnapshotInfo& one : snapshot::list(run)) {
    const snapshot::Safetensors model(one.path + "/model.safetensors");
    mesh::NamedTensors tensors;
    for (const snapshot::TensorEntry& entry : model.entries()) tensors.push_back({entry.name, model.view(entry)});
    found[one.step] = first_not_finite(tensors).empty();
  }
  return found;
}

harness::Run run_with(int ranks, const base::Recipe& recipe, const Start& start, const data::Subset& subset) {
  const base::Stop never;
  return harness::on_ranks(ranks, {.expect_errors = true}, [&](comm::World& world) { run(world, recipe, start, subset, never); });
}

void expect_only_good_snapshots(const std::string& device, int ranks) {
  const harness::ScratchFolder scratch;
  for (const std::string mode : {"sync", "async"})
    for (const int64_t bad_step : {4, 6, 5}) {  // a save step, the last step, a step in between
      const fs::path out = scratch / fmt::format("{}-{}", mode, bad_step);
      const harness::Run ended = run_with(ranks, saved_recipe({"snapshot.mode=" + mode}),
                                          {.out = out, .cache = {}, .device = device, .terminal = nullptr}, overflow_in_step(bad_step));
      EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::diverged);
      EXPECT_THAT(ended.error_on(0).what(), HasSubstr(fmt::format("step {}", bad_step)));
      const std::map<int64_t, bool> expected{{bad_step == 4 ? 2 : 4, true}};
      EXPECT_EQ(saved_steps(out), expected) << mode << ", step " << bad_step;
    }
}

TEST(SavedState, ABadStepIsNeverSavedOnOneRankAndTwo) {
  expect_only_good_snapshots("cpu", 1);
  expect_only_good_snapshots("cpu", 2);
}

TEST(SavedState, ABadStepIsNeverSavedOnAGpu) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  expect_only_good_snapshots("cuda", 1);
}

TEST(SavedState, AnUpdateThatOverflowsIsNotSavedThoughItsLossIsFinite) {
  const harness::ScratchFolder scratch;
  const harness::Run ended = run_with(2, saved_recipe({"snapshot.every=1", "optim.learning_rate=3e38", "optim.weight_decay=0"}),
                                      {.out = scratch / "run", .cache = {}, .terminal = nullptr}, {});
  EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::diverged);
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("step 1: "));
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("not finite after the update"));
  EXPECT_FALSE(fs::exists(scratch / "run/snapshots"));
}

TEST(SavedState, ValuesThatAreNotFiniteAreNotResumed) {
  const harness::ScratchFolder scratch;
  const Start start{.out = scratch / "run", .cache = {}, .terminal = nullptr};
  harness::on_ranks(1, [&](comm::World& world) {
    const std::unique_ptr<Job> job = build(world, saved_recipe({}), start, {});
    base::make_folder(start.out);
    base::write_atomically(start.out / "recipe.toml", job->config.recipe_toml);
    at::Tensor last = job->engine.trained.values.back().tensor;
    last.view({-1})[-1].fill_(std::numeric_limits<double>::quiet_NaN());
    job->progress.steps_done = 2;
    save_now(*job, start.out, base::real_disk());
  });
  Start resumed = start;
  resumed.resume = true;
  const harness::Run ended = run_with(1, saved_recipe({}), resumed, {});
  EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::corrupt_file);
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("step-00000002"));
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("has values that are not finite"));
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("resume from the snapshot before it"));
}

TEST(SavedState, FindsAValueThatIsNotFiniteAnywhereInALargeTensor) {
  const at::Tensor large = at::zeros({(int64_t{1} << 22) + 3}), whole_numbers = at::zeros({3}, at::kLong);
  EXPECT_EQ(first_not_finite({{"whole numbers", whole_numbers}, {"large", large}}), "");
  for (const int64_t at : {int64_t{0}, int64_t{1} << 22, large.size(0) - 1})
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      large[at].fill_(bad);
      EXPECT_EQ(first_not_finite({{"whole numbers", whole_numbers}, {"large", large}}), "large");
      large[at].fill_(3.4e38);
    }
}

TEST(SavedState, TrainingOutlastsADiskThatIsFullForThreeSaves) {
  const harness::ScratchFolder scratch;
  for (const std::string mode : {"sync", "async"}) {
    const fs::path out = scratch / mode;
    const harness::Run ended = harness::on_ranks(1, [&](comm::World& world) {
      base::FaultyDisk disk({});
      const std::unique_ptr<Job> job =
          build(world, saved_recipe({"snapshot.mode=" + mode}), {.out = out, .cache = {}, .terminal = nullptr}, {});
      SnapshotWriter writer(*job, world.log(), world.wall(), disk);
      const auto save_at = [&](int64_t step) {
        job->progress.steps_done = step;
        writer.save();
        writer.finish();
      };
      save_at(2);
      EXPECT_NO_THROW(writer.rethrow_failure());
      disk.fill_up();
      for (const int64_t step : {4, 6, 8}) {
        save_at(step);
        EXPECT_EQ(saved_steps(out), (std::map<int64_t, bool>{{2, true}}));
        EXPECT_THROW(writer.rethrow_failure(), Error);
      }
      disk.recover();
      save_at(10);
      EXPECT_NO_THROW(writer.rethrow_failure());
      EXPECT_EQ(saved_steps(out), (std::map<int64_t, bool>{{10, true}}));
    });
    for (const int step : {4, 6, 8})
      EXPECT_THAT(ended.log.at(0), testing::Contains(HasSubstr(fmt::format("warn: the snapshot of step {} was not saved: ", step))));
  }
}

TEST(SavedState, ARunWhoseLastSaveFailsTrainsToTheEndAndSaysSo) {
  const harness::ScratchFolder scratch;
  for (const std::string mode : {"sync", "async"}) {
    fs::remove_all(scratch / "run");
    fs::create_directories(scratch / "run");
    (void)scratch.file("run/snapshots", "a file where the folder should be");
    const harness::Run ended =
        run_with(2, saved_recipe({"snapshot.mode=" + mode}), {.out = scratch / "run", .cache = {}, .terminal = nullptr}, {});
    EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::disk);
    EXPECT_EQ(base::read_metrics(scratch / "run/metrics.jsonl").size(), 6u);
    EXPECT_TRUE(fs::exists(scratch / "run/report.html"));
    EXPECT_THAT(ended.log.at(0), testing::Contains(HasSubstr("warn: the snapshot of step 2 was not saved: ")));
    EXPECT_THAT(ended.log.at(0), testing::Contains(HasSubstr("warn: the snapshot of step 4 was not saved: ")));
  }
}

TEST(SavedState, ARunWhoseFolderIsDeletedGoesOnAndCanBeResumed) {
  const harness::ScratchFolder scratch;
  const fs::path out = scratch / "run";
  const base::Stop never;
  const base::Recipe recipe = saved_recipe({"train.steps=400", "snapshot.every=40", "log.tensorboard=true", "log.trace=true"});
  std::thread deleter([&] {
    const base::RealClock clock;
    while (clock.now() < std::chrono::minutes(1) && !fs::exists(out / "snapshots")) std::this_thread::yield();
    std::error_code ignored;  // the run writes meanwhile
    for (int i = 0; i < 5; ++i) fs::remove_all(out, ignored);
  });
  const harness::Run ended =
      harness::on_ranks(1, [&](comm::World& world) { run(world, recipe, {.out = out, .cache = {}, .terminal = nullptr}, {}, never); });
  deleter.join();
  EXPECT_EQ(saved_steps(out), (std::map<int64_t, bool>{{400, true}}));
  EXPECT_THAT(ended.log.at(0), testing::Contains(HasSubstr("metrics.jsonl was deleted: it begins again here")));
  EXPECT_GT(base::read_metrics(out / "metrics.jsonl").size(), 10u);
  EXPECT_LT(base::read_metrics(out / "metrics.jsonl").size(), 400u);
  EXPECT_TRUE(fs::exists(out / "report.html"));
  const std::vector<double> losses = losses_on(1, saved_recipe({"train.steps=403"}), out, /*resume=*/true);
  EXPECT_TRUE(std::isfinite(losses.back()));
}

TEST(SavedState, AStepIsSavedBeforeItIsEvaluated) {
  const harness::ScratchFolder scratch;
  train_on(1, saved_recipe({"eval.every=2", "log.trace=true"}), scratch / "run");
  const base::Json trace = base::parse_json(scratch.text_of("run/trace.json"));
  std::vector<std::string> order;
  for (const base::Json& event : trace["traceEvents"])
    if (event["name"] == "save" || event["name"] == "evaluate") order.push_back(event["name"]);
  EXPECT_THAT(order, testing::ElementsAre("save", "evaluate", "save", "evaluate", "save", "evaluate"));
  for (const base::MetricsRow& row : base::read_metrics(scratch / "run/metrics.jsonl"))
    EXPECT_EQ(row.has("eval_loss"), row.integer("step") % 2 == 0) << row.integer("step");
}

}  // namespace
}  // namespace cairn::train
