#pragma once
#include <cstdint>
#include <memory>

#include "base/random.h"
#include "mesh/axes.h"
#include "mesh/flat_gradients.h"
#include "model/model.h"
#include "model/objective.h"
#include "optim/optimizer.h"
#include "parallel/pass.h"
#include "sync/sync.h"

namespace cairn::base {
class MemoryTags;
class Trace;
}  // namespace cairn::base

namespace cairn::train {

// The parts that a step works with, built from a recipe and a plan (build.cpp). One per rank.
struct Engine {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::Objective> objective;
  std::unique_ptr<model::FlatWeights> weights;  // as they are kept and updated
  std::unique_ptr<model::FlatWeights> lowered;  // what passes read instead, where they compute in a lower precision: made anew for each
  model::Buffers buffers;
  mesh::Axes axes;
  std::shared_ptr<void> gradient_memory;  // from the group that reduces them
  std::unique_ptr<mesh::FlatGradients> gradients;
  std::unique_ptr<mesh::Gradients> chosen;           // before `gradients`, where only some parameters are trained
  mesh::NamedTensors parameter_views;                // all, in the model's order
  mesh::NamedTensors trained_views, gradient_views;  // what sync and optimizer work on, in one order
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<sync::Sync> sync;
  int64_t pieces = 0;       // of the optimizer
  int64_t micro_batch = 1;  // samples of one pass
  double clip_norm = 0;
  base::Random random;  // for what is drawn during a pass
  base::Trace* trace = nullptr;
  base::MemoryTags* memory = nullptr;
};

// Where the weight gradients of a pass go.
mesh::Gradients* sink_of(Engine& engine);

// What a pass reads, as the parameters are now.
const model::Weights& weights_of_pass(Engine& engine);

// A run of the engine's model over a batch: for its losses only, until it is told where gradients go.
parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch);

}  // namespace cairn::train
