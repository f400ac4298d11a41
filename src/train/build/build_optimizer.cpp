#include <algorithm>
#include <set>
#include <string>

#include "base/check.h"
#include "base/memory_scope.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "optim/active_optimizer.h"
#include "optim/announced_optimizer.h"
#include "optim/bf16_optimizer.h"
#include "optim/needs.h"
#include "optim/swapped_optimizer.h"
#include "train/build/build_steps.h"
#include "train/offload/offload_plan.h"
#include "train/parameter_piece.h"
#include "train/step_methods.h"

namespace cairn::train {
namespace {

// All trained parameters of the model, whichever ranks have them.
optim::ActiveSet active_set(const Job& job) {
  std::set<std::string> trained;
  for (const sync::FullParameter& one : job.engine.trained.full) trained.insert(one.name);
  std::vector<optim::ActiveSet::Member> members;
  for (const model::Parameter& one : job.engine.model->parameters())
    if (trained.contains(one.name)) members.push_back({.name = one.name, .shape = one.shape});
  return optim::ActiveSet(std::move(members));
}

}  // namespace

void make_optimizer(Job& job, comm::World& world) {
  const Settings& s = job.config.settings;
  Engine& engine = job.engine;
  std::vector<optim::ParameterPiece> pieces;
  std::vector<mesh::Fragment> fragments;
  std::vector<int64_t> units;  // by piece
  if (step_method(s).needs.optimizer)
    for (const parallel::ParameterSlice& piece : engine.store->pieces()) {
      if (!piece.gradient.defined()) continue;
      const model::Parameter& of = engine.model->parameters()[piece.parameter];
      const mesh::LocalShard& local_shard = engine.store->shard().parameters[piece.parameter].local_shard;
      if (of.on_hyperboloid && !optim::optimizer_needs(s.optim.kind).on_manifolds)
        base::fail_input("optim.kind = {}: {} has points of hyperbolic space, which it would move away from there. Use riemannian_adam.",
                         s.optim.kind, of.name);
      pieces.push_back(make_piece(of, piece, local_shard));
      fragments.push_back({local_shard, piece.elements});
      units.push_back(piece.unit);
      if (!optim::optimizer_needs(s.optim.kind).elementwise()) pieces.back().split = tensor_shard(world, job.config.plan, of);
    }
  const parallel::MemoryOptions& memory = s.layout.memory;
  mesh::TensorSwapper* const swapper = engine.store->swapper();
  if (swapper) assign_groups(pieces, units, memory.group_elements);
  {
    const base::MemoryScope scope("optimizer");
    const std::unique_ptr<optim::StateMemory> away =
        memory.optimizer == memory::TierKind::device ? nullptr : optim::swapped_state_memory(*swapper, memory.optimizer);
    engine.optimizer = s.train.parameters == Precision::bf16
                           ? optim::make_bf16_optimizer(s.optim, pieces, base::Random(static_cast<uint64_t>(s.train.seed)), away.get())
                           : optim::make_optimizer(s.optim, pieces, away.get());
    auto active = std::make_unique<optim::ActiveOptimizer>(std::move(engine.optimizer), pieces, std::move(fragments), active_set(job));
    engine.active = active.get();
    engine.optimizer = std::move(active);
    if (swapper) engine.optimizer = optim::swap_groups(std::move(engine.optimizer), pieces, *swapper, memory.read_ahead > 0 ? 1 : 0);
    if (engine.trained.barrier)
      engine.optimizer = optim::announce_writes(std::move(engine.optimizer), pieces, optim::optimizer_needs(s.optim.kind).elementwise(),
                                                *engine.trained.barrier);
  }
}

void build_optimizer(Job& job, comm::World& world) {
  const Settings& s = job.config.settings;
  make_optimizer(job, world);
  int64_t bytes = 0;
  const mesh::TensorSwapper* const swapper = job.engine.store->swapper();
  for (const mesh::NamedTensor& state : job.engine.optimizer->state())
    if (!swapper || !swapper->owns(state.tensor)) bytes += static_cast<int64_t>(state.tensor.nbytes());
  job.instruments.booked.emplace_back(*job.instruments.memory, base::MemoryUse::optimizer, bytes);
  // The steps of train.epochs are known only here: the warm-up takes at most as much of them as the default does.
  const int64_t warmup_steps = s.train.epochs > 0 ? std::min(s.optim.warmup_steps, s.train.steps * 2 / 5) : s.optim.warmup_steps;
  job.schedule = {.shape = s.optim.schedule,
                  .highest = s.optim.learning_rate,
                  .warmup = static_cast<double>(warmup_steps) / static_cast<double>(s.train.steps),
                  .min_lr_ratio = s.optim.min_lr_ratio,
                  .decay_share = s.optim.decay_share,
                  .decay_shape = s.optim.decay_shape};
  if (const model::SupernetOptions& supernet = s.model.supernet; supernet.any() && supernet.method == model::ShrinkMethod::late)
    job.schedule.restart_at = supernet.shrink_at, job.schedule.restart_ratio = supernet.restart_ratio;
}

}  // namespace cairn::train
