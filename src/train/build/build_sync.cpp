#include "base/check.h"
#include "base/stop.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/classifier/batch_norm.h"
#include "sync/needs.h"
#include "train/build/build_steps.h"

namespace cairn::train {
namespace {

sync::Replica replica_of(const Job& job, comm::Group& replica_group, comm::Group& model_group) {
  const Settings& s = job.config.settings;
  return {.replica_group = replica_group,
          .model_group = model_group,
          .parameters = job.engine.trained.values,
          .gradients = job.engine.trained.gradients,
          .model = job.engine.trained.full,
          .steps = s.train.steps,
          .seed = static_cast<uint64_t>(s.train.seed),
          .trace = job.instruments.trace.get(),
          .barrier = job.engine.trained.barrier};
}

std::unique_ptr<sync::Sync> make_island_rule(Job& job, comm::World& world, const Start& start) {
  const Settings& s = job.config.settings;
  const parallel::Plan& plan = job.config.plan;
  if (!model::running_buffers(job.engine.buffers).empty())
    base::fail_input(
        "sync.island.kind = {}: this model keeps running statistics (batch norm), which differ from island to island: use "
        "all_reduce, or a model without them",
        s.island.kind);
  if (plan.islands > 1) job.remote_islands = std::make_unique<RemoteIslandHost>(job, world, start.remote);
  comm::Group& islands = job.remote_islands ? world.alone() : world.group(plan.mesh.peers(world.rank(), "island"), "islands");
  sync::Replica replica = replica_of(job, islands, *job.engine.step_group);
  if (job.remote_islands) replica.remote_islands = job.remote_islands->remote();
  if (start.stop) replica.stopping = [stop = start.stop] { return stop->requested(); };
  return sync::make_sync(s.island, replica);
}

}  // namespace

void build_sync(Job& job, comm::World& world, const Start& start) {
  const parallel::Plan& plan = job.config.plan;
  comm::Group& replicas = world.group(plan.mesh.peers_along(world.rank(), parallel::replicating_axes(plan)));
  std::vector<std::unique_ptr<sync::Sync>> rules;
  rules.push_back(sync::make_sync(job.config.settings.sync, replica_of(job, replicas, world.alone())));
  if (parallel::islands_step_separately(plan)) rules.push_back(make_island_rule(job, world, start));
  const Settings& s = job.config.settings;
  const bool announced =
      sync::needs_of(s.sync.kind).announces_writes && (rules.size() == 1 || sync::needs_of(s.island.kind).announces_writes);
  job.engine.sync_writes_frozen = parallel::islands_step_separately(plan) && !sync::needs_of(s.island.kind).leaves_out_frozen;
  job.engine.sync = sync::make_chain(std::move(rules), announced ? nullptr : job.engine.trained.barrier);
}

}  // namespace cairn::train
