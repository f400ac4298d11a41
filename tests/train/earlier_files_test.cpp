// Files that an earlier version of Cairn wrote still load: fixtures/earlier holds a recipe, a plan and a snapshot from before names and
// folders of the source changed (2026-11-18), and the losses that the run went on to have.
#include <array>
#include <filesystem>

#include <gtest/gtest.h>

#include "base/files.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "parallel/layout/plan_file.h"
#include "train/settings.h"
#include "train/train.h"

namespace cairn::train {
namespace {

namespace fs = std::filesystem;

const fs::path kEarlier = fs::path(CAIRN_SOURCE_DIR) / "tests/train/fixtures/earlier";
constexpr double kLossOfStep6 = 5.482845306396484, kHeldOutLoss = 5.418451368808746;  // as that run's metrics.jsonl has them
constexpr double kTolerance = 1e-5;                                                   // fp32 sums in another order on other processors

base::Recipe earlier_recipe() { return base::Recipe::parse(base::read_file(kEarlier / "recipe.toml", 1 << 20), "recipe.toml"); }

// Resumes the earlier run after its step 3 and trains it to its end.
Result resumed(int ranks, std::shared_ptr<const parallel::Plan> plan) {
  const harness::ScratchFolder scratch;
  fs::create_directories(scratch / "run/snapshots");
  fs::copy(kEarlier / "step-00000003/training/recipe.toml", scratch / "run/recipe.toml");
  fs::copy(kEarlier / "step-00000003", scratch / "run/snapshots/step-00000003", fs::copy_options::recursive);
  std::vector<Result> results(static_cast<size_t>(ranks));
  const base::Stop never;
  harness::on_ranks(ranks, [&](comm::World& world) {
    const Start start{.out = scratch / "run", .resume = true, .cache = {}, .terminal = nullptr, .plan = plan};
    results[static_cast<size_t>(world.rank())] = run(world, earlier_recipe(), start, {}, never);
  });
  return results.front();
}

TEST(EarlierFiles, EveryKeyOfASavedRecipeIsStillRead) {
  base::Recipe recipe = base::Recipe::parse(base::read_file(kEarlier / "step-00000003/training/recipe.toml", 1 << 20), "recipe.toml");
  const Settings settings = read_settings(recipe);
  EXPECT_EQ(settings.model.embed, 8);
  EXPECT_EQ(settings.data.length, 16);
  EXPECT_EQ(settings.train.steps, 6);
  EXPECT_EQ(settings.optim.warmup_steps, 2);
}

TEST(EarlierFiles, ASnapshotGoesOnWithTheLossesItHad) {
  const Result result = resumed(1, nullptr);
  EXPECT_EQ(result.step, 6);
  EXPECT_NEAR(result.loss, kLossOfStep6, kTolerance);
  EXPECT_NEAR(result.held_out_loss, kHeldOutLoss, kTolerance);
}

TEST(EarlierFiles, APlanLaysTheRunOut) {
  const auto plan =
      std::make_shared<const parallel::Plan>(parallel::parse_plan(base::read_file(kEarlier / "plan.json", 1 << 20), "plan.json"));
  EXPECT_EQ(plan->mesh.extent("tp"), 2);
  const Result result = resumed(2, plan);
  EXPECT_EQ(result.step, 6);
  EXPECT_NEAR(result.loss, kLossOfStep6, kTolerance);
}

}  // namespace
}  // namespace cairn::train
