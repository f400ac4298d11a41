#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "train/build/build_steps.h"
#include "train/step_methods.h"

namespace cairn::train {
namespace {

void build_pipeline(Job& job, comm::World& world) {
  const parallel::Plan& plan = job.config.plan;
  const auto peers = [&](const std::vector<std::string>& axes) -> comm::Group& {
    return world.group(plan.mesh.peers_along(world.rank(), axes), "pipeline");
  };
  job.engine.pipeline = std::make_unique<parallel::Pipeline>(
      *job.engine.model, plan,
      plan.routing == parallel::Routing::random ? parallel::island_pipelines(plan, peers({"island", "pp"}), world.rank())
                                                : parallel::single_pipeline(peers({"pp"})),
      [&layout = job.config.settings.layout, &plan](int micro_batches) { return parallel::schedule_of(layout, plan, micro_batches); });
}

}  // namespace

void build_step(Job& job, comm::World& world, const std::vector<bool>& trained, std::function<void()> load_start_weights) {
  if (job.config.plan.mesh.extent("pp") > 1) build_pipeline(job, world);
  if (const int64_t bytes = job.config.settings.train.cache_frozen_bytes; bytes > 0) {
    job.engine.frozen = std::make_unique<model::FrozenPrefix>(*job.engine.model, trained, bytes);
    if (job.engine.frozen->blocks() == 0)
      base::fail_input("train.cache_frozen_bytes = {}: the first layers are trained, so nothing is frozen. Leave it out.", bytes);
  }
  job.step = step_method(job.config.settings).make({job, world, trained, std::move(load_start_weights)});
  int64_t bytes = 0;
  for (const mesh::NamedTensors& part : {job.step->state(), job.step->rank_state()})
    for (const mesh::NamedTensor& one : part) bytes += static_cast<int64_t>(one.tensor.nbytes());
  if (bytes > 0) job.instruments.booked.emplace_back(*job.instruments.memory, base::MemoryUse::optimizer, bytes);
}

}  // namespace cairn::train
