#include "train/build/resume_from.h"

#include "base/check.h"
#include "base/files.h"
#include "base/recipe.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/world.h"
#include "parallel/options.h"
#include "parallel/plan.h"
#include "sync/needs.h"
#include "sync/options.h"
#include "train/build/build_steps.h"
#include "train/state/find_snapshot.h"

namespace cairn::train {
namespace {

// Each island has state of its own: another number of islands would leave some without, and all would start over at step 1.
void check_islands(const Job& job, const std::filesystem::path& run_dir) {
  if (!base::path_exists(run_dir / "recipe.toml")) return;  // on another machine's disk
  base::Recipe before = base::Recipe::parse_file(run_dir / "recipe.toml");
  const parallel::Plan& plan = job.config.plan;
  const int64_t then = separate_islands(before), now = parallel::islands_step_separately(plan) ? plan.mesh.extent("island") : 1;
  if (then != now)
    base::fail_input(
        "mesh.island = {}: {} was trained with {} that step separately, and each has its own state: resume with as many, or "
        "start a new run from its model (model.from = \"{}\")",
        plan.mesh.extent("island"), run_dir.string(), then == 1 ? "no islands" : base::plural(then, "island"), run_dir.string());
}

}  // namespace

std::optional<snapshot::OpenSnapshot> find_resumed(const Job& job, comm::World& world, const Start& start) {
  if (!start.resume) return std::nullopt;
  check_islands(job, start.out);
  // Islands that were killed are at most two snapshots apart: they repeat the steps after the last common one. Without regular snapshots
  // nothing says how far back that is.
  const int64_t every = job.config.settings.snapshot.every, steps = job.config.settings.train.steps;
  auto found = find_snapshot(world, *job.engine.step_group, job.config.out.string(),
                             {.step_last = start.resume_step_last,
                              .max_apart = 2 * every,
                              .one_model = sync::needs_of(job.config.settings.island.kind).one_model});
  if (found) check_steps_left(steps, found->step(), start.out);
  return found;
}

int64_t separate_islands(base::Recipe& recipe) {
  const int64_t islands = recipe.read(parallel::mesh_schema()).island;
  return islands > 1 && sync::needs_of(sync::read_island_sync(recipe).kind).local_steps ? islands : 1;
}

void check_steps_left(int64_t steps, int64_t done, const std::filesystem::path& run) {
  if (done > steps)
    base::fail_input("train.steps = {}: {} is already at step {}: raise train.steps, or start a new run (without --resume)", steps,
                     run.string(), done);
}

std::unique_ptr<snapshot::RunLock> hold_island_directory(const Job& job, const Start& start) {
  if (!job.config.writes || job.config.out == start.out) return nullptr;
  return std::make_unique<snapshot::RunLock>(job.config.out);
}

}  // namespace cairn::train
