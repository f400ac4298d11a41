#include "train/build/resume_from.h"

#include <limits>

#include "base/check.h"
#include "base/files.h"
#include "base/recipe.h"
#include "comm/group.h"
#include "comm/world.h"
#include "parallel/options.h"
#include "sync/needs.h"
#include "sync/options.h"
#include "train/build/build_steps.h"
#include "train/state/restore.h"

namespace cairn::train {
namespace {

// Each island has state of its own: another number of islands would leave some without, and all would start over at step 1.
void check_islands(const Job& job, const std::filesystem::path& run_dir) {
  if (!base::path_exists(run_dir / "recipe.toml")) return;  // on another machine's disk
  base::Recipe before = base::Recipe::parse_file(run_dir / "recipe.toml");
  const auto separate = [](int64_t islands, const std::string& rule) {
    return islands > 1 && sync::needs_of(rule).local_steps ? islands : 1;
  };
  const int64_t islands = job.config.settings.layout.mesh.island, now = separate(islands, job.config.settings.island.kind);
  const int64_t then = separate(before.read(parallel::mesh_schema()).island, sync::read_island_sync(before).kind);
  if (then != now)
    base::fail_input(
        "mesh.island = {}: {} was trained with {} island{} that step{} separately, and each has its own state: resume with as many, or "
        "start a new run from its model (model.from = \"{}\")",
        islands, run_dir.string(), then, then == 1 ? "" : "s", then == 1 ? "s" : "", run_dir.string());
}

}  // namespace

std::optional<snapshot::OpenSnapshot> find_resumed(const Job& job, comm::World& world, const Start& start) {
  if (!start.resume) return std::nullopt;
  check_islands(job, start.out);
  // Islands that were killed are at most two snapshots apart.
  const int64_t every = job.config.settings.snapshot.every, steps = job.config.settings.train.steps;
  const int64_t max_apart = every > 0 ? 2 * every : std::numeric_limits<int64_t>::max();
  auto found = find_snapshot(world, *job.engine.step_group, job.config.out.string(), start.resume_step_last, max_apart);
  if (found && found->step() > steps)
    base::fail_input("train.steps = {}: {} is already at step {}: raise train.steps, or start a new run (without --resume)", steps,
                     start.out.string(), found->step());
  return found;
}

std::unique_ptr<snapshot::RunLock> hold_island_directory(const Job& job, const Start& start) {
  if (!job.config.writes || job.config.out == start.out) return nullptr;
  return std::make_unique<snapshot::RunLock>(job.config.out);
}

}  // namespace cairn::train
