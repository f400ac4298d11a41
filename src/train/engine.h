#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "base/random.h"
#include "mesh/axes.h"
#include "model/decoder/fp8_linear.h"
#include "model/experts/exchange.h"
#include "model/frozen_prefix.h"
#include "model/model.h"
#include "model/objective.h"
#include "model/pass_options.h"
#include "optim/optimizer.h"
#include "parallel/experts/copied_experts.h"
#include "parallel/pass.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/state/parameter_store.h"
#include "sync/sync.h"

namespace cairn::base {
class MemoryTags;
class Trace;
}  // namespace cairn::base

namespace cairn::mesh {
class WriteBarrier;
}
namespace cairn::optim {
class ActiveOptimizer;
}

namespace cairn::train {

// What sync and optimizer work on: the trained pieces that this rank keeps, in one order.
struct TrainedParameters {
  mesh::NamedTensors values, gradients;
  std::vector<sync::FullParameter> full;  // the trained parameters of the whole model, by name
  // Whoever changes these, or other tensors that snapshots hold, calls it first (mesh/write_barrier.h). Null: nobody asks.
  mesh::WriteBarrier* barrier = nullptr;
};

// The ranks that step plans (context.plan) share the sequences of a step out to: those with samples of their own, of this step group and
// with this rank's coordinates along tp.
struct UnitPool {
  int rank = 0;   // of this rank in the pool
  int ranks = 1;  // of the pool
  // The group of these ranks of the pool, in this order; this rank is one of them. Empty: there are no step plans.
  std::function<comm::Group&(const std::vector<int>& ranks)> group = {};
};

// How the samples of a rank become passes (gradient accumulation).
struct MicroBatching {
  int64_t samples = 1;  // samples of one pass
  int64_t count = 0;    // passes of a step; 0: as many as passes of `samples` need
  UnitPool pool = {};   // of step plans, where passes are units
};

// What the options of passes borrow, and what stands in for weights and gradients in them. Null: the run has none.
struct OwnedByPasses {
  std::unique_ptr<model::Fp8LinearLayers> fp8;      // which linear layers are in fp8
  std::unique_ptr<model::ExpertExchange> experts;   // between the ranks along ep
  std::unique_ptr<parallel::CopiedExperts> copies;  // expert.placement = fssdp: experts that are copied for a step
};

// What a step works with: model, parameters, optimizer, sync rules and pass options. train::build makes one on every rank.
struct Engine {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::Objective> objective;
  std::unique_ptr<parallel::ParameterStore> store;  // parameters and gradients
  model::Buffers buffers;
  mesh::Axes axes;
  comm::Group* step_group = nullptr;  // the ranks that step together (parallel::step_group_of); borrowed from the world
  TrainedParameters trained;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::ActiveOptimizer* active = nullptr;  // inside `optimizer`: what it changes (active_parts.h); null: all of it
  bool sync_writes_frozen = false;           // a sync rule sends and writes frozen parameters too
  std::unique_ptr<sync::Sync> sync;
  std::unique_ptr<parallel::Pipeline> pipeline;  // where mesh.pp is more than 1
  MicroBatching micro_batching;
  double clip_norm = 0;
  double loss_share = 1;                        // ranks along tp compute the same loss: each counts this share of it
  parallel::ContextRule context = {};           // how sequences are sharded along cp
  model::PassOptions options = {};              // the options of all passes, which borrow them
  OwnedByPasses owned;                          // owns what options point to
  std::unique_ptr<model::FrozenPrefix> frozen;  // train.cache_frozen_bytes; null: every pass runs all blocks
  std::function<void()> before_update;          // called on all ranks when gradients are final, before the update; may be empty
  std::function<void()> after_update;           // called on all ranks when the optimizer has changed parameters; may be empty
  base::Random random;                          // for random numbers drawn during a pass
  base::Trace* trace = nullptr;
  base::MemoryTags* memory = nullptr;
};

// A forward pass of the engine's model over a batch. With a gradient sink (Pass::into) it becomes a forward and backward pass.
parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch);
// Along other groups than the engine's, which the pass borrows.
parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch, const mesh::Axes& axes);
// At other weights than the engine's, which the pass borrows too.
parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch, const mesh::Axes& axes, const model::Weights& at);

}  // namespace cairn::train
