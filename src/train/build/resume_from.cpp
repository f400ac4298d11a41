#include "train/build/resume_from.h"

#include <cmath>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/recipe.h"
#include "base/run_events.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/world.h"
#include "parallel/options.h"
#include "parallel/plan.h"
#include "sync/needs.h"
#include "sync/options.h"
#include "train/build/build_steps.h"
#include "train/state/find_snapshot.h"
#include "train/state/restore.h"
#include "train/state/restore_source.h"

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

std::optional<snapshot::OpenSnapshot> find_on_disk(const Job& job, comm::World& world, const Start& start,
                                                   const std::set<int64_t>& passed_over = {}) {
  check_islands(job, start.out);
  // Islands that were killed are at most two snapshots apart: they repeat the steps after the last common one. Without regular snapshots
  // nothing says how far back that is.
  const int64_t every = job.config.settings.snapshot.every, steps = job.config.settings.train.steps;
  auto found = find_snapshot(world, *job.engine.step_group, job.config.out.string(),
                             {.step_last = start.resume_step_last,
                              .max_apart = 2 * every,
                              .passed_over = passed_over,
                              .one_model = sync::needs_of(job.config.settings.island.kind).one_model});
  if (found && job.config.settings.train.epochs == 0) check_steps_left(steps, found->step(), start.out);
  return found;
}

// Ranks find damage as they load. Where an island has found some, all islands search again: they need one step.
void restore_from_disk(Job& job, comm::World& world, const Start& start, snapshot::OpenSnapshot found) {
  std::set<int64_t> passed_over;
  while (true) {
    const std::string damage = restore(job, world.log(), found, job.config.out.string());
    int64_t damaged = damage.empty() ? 0 : 1;
    world.everyone().all_reduce({&damaged, 1, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "snapshots"}).wait_host();
    if (damaged == 0) return;
    if (!damage.empty()) {
      passed_over.insert(found.step());
      if (job.engine.step_group->rank() == 0) world.log().warn("snapshot of step {} is damaged, passed over: {}", found.step(), damage);
    }
    std::optional<snapshot::OpenSnapshot> other = find_on_disk(job, world, start, passed_over);
    if (!other)
      throw Error(Error::Kind::corrupt_file,
                  (damage.empty() ? "the snapshots of another island are damaged" : damage) + "; there is no earlier snapshot");
    found = std::move(*other);
  }
}

// Where a run that an agent has started again goes on, for people and events.jsonl.
void report_restored(const Job& job, comm::World& world, const Start& start, const char* source, double load_s) {
  if (start.generation <= 1 || world.rank() != 0) return;
  const double since_loss_s = start.lost_at > 0 ? base::wall_time() - start.lost_at : 0;
  if (job.progress.steps_done == 0)
    world.log().warn("generation {}: there is no state in memory and no snapshot: the run starts from the beginning", start.generation);
  else
    world.log().info("generation {}: restored step {} from {} in {:.2f} s, {:.1f} s after the loss", start.generation,
                     job.progress.steps_done, source, load_s, since_loss_s);
  const auto rounded = [](double seconds) { return std::round(seconds * 1000) / 1000; };
  base::RunEvents(job.config.out)
      .write("restored", {{"generation", start.generation},
                          {"source", source},
                          {"step", job.progress.steps_done},
                          {"ranks", world.size()},
                          {"load_s", rounded(load_s)},
                          {"since_loss_s", rounded(since_loss_s)}});
}

}  // namespace

ResumedFrom find_resumed(Job& job, comm::World& world, const Start& start) {
  ResumedFrom found;
  if (start.memory && (start.resume || start.generation > 1)) found.memory_step = start.memory->newest_step(job, world);
  if (start.resume && !found.memory_step) found.disk = find_on_disk(job, world, start);
  return found;
}

void restore_newest(Job& job, comm::World& world, const Start& start, ResumedFrom found, const std::function<void()>& start_over) {
  const double since = base::seconds(world.wall().now());
  const char* source = "start";
  if (found.memory_step) {
    if (const std::string why = start.memory->load(job, world); why.empty()) {
      source = "memory";
    } else {
      if (world.rank() == 0) world.log().warn("the state in memory cannot be used: {}: the disk is asked", why);
      if (start.resume) found.disk = find_on_disk(job, world, start);
      if (!found.disk) start_over();
    }
  }
  if (found.disk) {
    source = "disk";
    restore_from_disk(job, world, start, std::move(*found.disk));
  }
  report_restored(job, world, start, source, base::seconds(world.wall().now()) - since);
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
