#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "base/random.h"
#include "mesh/axes.h"
#include "model/decoder/fp8_linear.h"
#include "model/model.h"
#include "model/objective.h"
#include "optim/optimizer.h"
#include "parallel/pass.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/state/parameter_store.h"
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
  std::unique_ptr<parallel::ParameterStore> store;  // parameters and gradients
  model::Buffers buffers;
  mesh::Axes axes;
  comm::Group* step_group = nullptr;               // the ranks that take a step together (step_group_of); borrowed from the world
  mesh::NamedTensors kept_views, gradient_views;   // what sync and optimizer work on, in one order: the store's kept pieces
  std::vector<sync::FullParameter> trained_whole;  // what is trained of the whole model, by name
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<sync::Sync> sync;
  int64_t pieces = 0;         // of the optimizer
  int64_t micro_batch = 1;    // samples of one pass
  int64_t micro_batches = 0;  // passes of a step; 0: as many as micro_batch makes
  double clip_norm = 0;
  double loss_share = 1;  // of the loss that a pass finds here: ranks that find the same one count it together once
  parallel::ContextRule context = {};
  bool overlap = false;                              // of products along tp with their messages
  bool late_sums = true;                             // Call::late_sums
  int64_t loss_chunks = 1;                           // Call::loss_chunks
  bool draws_by_token = false;                       // as Pass has it
  std::unique_ptr<model::Fp8LinearLayers> fp8 = {};  // null: no products in eight bits
  std::vector<bool> recompute = {};                  // by block
  bool offload_inputs = false;                       // Pass::offload_inputs
  bool recompute_stage = false;
  bool recompute_last = true;                    // the last micro-batch of a step too
  std::unique_ptr<parallel::Pipeline> pipeline;  // where there is one
  std::function<void()> before_update;  // called when gradients are final and nothing is updated yet, alike on all ranks; may be empty
  base::Random random;                  // for what is drawn during a pass
  base::Trace* trace = nullptr;
  base::MemoryTags* memory = nullptr;
};

// A run of the engine's model over a batch: for its losses only, until it is told where gradients go.
parallel::Pass pass_over(Engine& engine, const mesh::Batch& batch);

// What a pass with gradients computes again, in place of keeping it. `last`: of the micro-batches of a step.
void recompute_as_planned(const Engine& engine, parallel::Pass& pass, bool last);

}  // namespace cairn::train
