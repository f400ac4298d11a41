#include "train/experts/move_experts.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "model/named_parameters.h"
#include "model/trainable.h"
#include "optim/active_optimizer.h"
#include "optim/needs.h"
#include "parallel/layout/expert_split.h"
#include "train/active_parts.h"
#include "train/build/build_steps.h"
#include "train/job.h"
#include "train/state/full_state.h"
#include "train/state/state_move.h"
#include "train/step_methods.h"

namespace cairn::train {
namespace {

std::vector<StateTensor> state_that_moves(Job& job) {
  std::vector<StateTensor> all = parameter_state(job);
  for (StateTensor& one : optimizer_state(job)) all.push_back(std::move(one));
  CAIRN_CHECK(job.engine.sync->global_parameters().empty() && job.engine.sync->elements(job.progress.steps_done).empty(),
              "the sync rule keeps state of its own");
  return all;
}

void place(Job& job, const std::vector<mesh::Ragged>& homes) {
  const std::vector<std::string> blocks = job.engine.owned.copies->blocks();
  CAIRN_CHECK(homes.size() == blocks.size(), "homes of {} blocks for {}", homes.size(), blocks.size());
  for (const auto& block : job.engine.model->blocks()) {
    const auto found = std::find(blocks.begin(), blocks.end(), block->card().name);
    if (found == blocks.end()) continue;
    for (const mesh::ParamId& id : model::named_parameters(block->card())) {
      const model::Parameter& one = job.engine.model->parameters()[static_cast<size_t>(id.first)];
      const int64_t dim = parallel::expert_dim(one);
      if (dim < 0) continue;
      mesh::Ragged table = homes[static_cast<size_t>(found - blocks.begin())];
      table.dim = dim;
      for (mesh::Placement::OnAxis& on : job.config.plan.placements.at(one.name).axes)
        if (on.axis == "ep") on.how = table;
    }
  }
}

int64_t bytes_of(const Job& job) {
  int64_t bytes = 0;
  for (const mesh::NamedTensor& one : job.engine.optimizer->state()) bytes += static_cast<int64_t>(one.tensor.nbytes());
  return bytes;
}

}  // namespace

int64_t move_experts(Job& job, comm::World& world, const std::vector<mesh::Ragged>& homes) {
  Engine& engine = job.engine;
  mesh::before_writing_all(engine.trained.barrier);
  engine.store->wait_for_gathers();
  const std::vector<StateTensor> before = state_that_moves(job);
  const int64_t optimizer_bytes = bytes_of(job);
  optim::ActiveSet active = engine.active->set();
  const auto map = std::move(job.state_map);
  const auto store = std::move(engine.store);  // these live until their state has been copied
  const auto sync = std::move(engine.sync);
  const auto optimizer = std::move(engine.optimizer);

  place(job, homes);
  const bool gradients = step_method(job.config.settings).needs.gradients;
  std::vector<bool> trained = model::trainable(*engine.model, job.config.settings.model.train);
  if (!gradients) trained.assign(trained.size(), false);
  place_state(job, world, {}, trained);
  make_optimizer(job, world);
  build_sync(job, world, {});
  engine.active->replace_set(std::move(active));
  apply_active(engine);

  const std::vector<StateTensor> after = state_that_moves(job);
  CAIRN_CHECK(before.size() == after.size(), "{} tensors of state where there were {}", after.size(), before.size());
  const StateMove move(*engine.step_group, *map, *job.state_map);
  int64_t sent = 0;
  for (size_t i = 0; i < before.size(); ++i) sent += move.run(before[i], after[i]);
  engine.active->changed_by_surgery();
  engine.store->updated();
  engine.owned.copies->moved(*engine.store, homes);

  auto& booked = job.instruments.booked;  // by how much a rank has more now, or less
  booked.emplace_back(*job.instruments.memory, base::MemoryUse::parameters, engine.store->parameter_bytes() - store->parameter_bytes());
  booked.emplace_back(*job.instruments.memory, base::MemoryUse::gradients, engine.store->gradient_bytes() - store->gradient_bytes());
  booked.emplace_back(*job.instruments.memory, base::MemoryUse::optimizer, bytes_of(job) - optimizer_bytes);
  return sent;
}

void check_experts_can_move(const Job& job) {
  const Settings& s = job.config.settings;
  if (!optim::optimizer_needs(s.optim.kind).elementwise())
    base::fail_input(
        "expert.reshard_every = {}: optim.kind = {} works on whole matrices, which ranks hold together by where experts lie. Use adamw or "
        "sgd, or expert.reshard_every = 0.",
        s.layout.expert.reshard_every, s.optim.kind);
}

}  // namespace cairn::train
