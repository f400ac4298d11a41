#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/batch.h"
#include "mesh/named_tensor.h"
#include "model/objective.h"
#include "sync/sync.h"

namespace cairn::parallel {
struct Pass;
}

namespace cairn::train {

struct Engine;
class CudaGraphStep;

// This rank's share of a global batch.
struct BatchShare {
  mesh::Batch batch = {};
  int64_t loss_denominator = 0;   // what the loss is a mean over, of what the company (Engine::company) has: tokens, or samples
  int64_t max_local_samples = 0;  // of the global batch, on any rank
};

// What one step is given. All ranks of a company are given the same but for the batch, which is this rank's share.
struct StepInput {
  int64_t step = 1;  // counts from 1
  const mesh::Batch& batch;
  int64_t tokens = 0;            // that the company (Engine::company) has of the global batch
  int64_t loss_denominator = 0;  // what the loss is a mean over, of those: tokens, or samples
  double learning_rate = 0;
  int64_t update = 1;             // counts from 1; behind `step` by the updates that were skipped
  int64_t max_local_samples = 0;  // of the global batch, on any rank
  // What the step that comes so many steps after this one will be given. Made when it is asked for; empty: not to be had.
  std::function<BatchShare(int64_t steps)> ahead = {};
  // Asked before anything is updated, alike on all ranks; false skips the update. Empty: always.
  std::function<bool(const at::Tensor& loss_sum, const at::Tensor& gradient_norm)> approve = {};
};

// What it leaves: one element each, still on the device, so that nothing waits for them here.
struct StepOutput {
  at::Tensor loss_sum = {};       // over this rank's samples
  at::Tensor gradient_norm = {};  // of the whole model, alike on all ranks of the company
  at::Tensor measures = {};       // sums over this rank's samples of what the objective measures; undefined: none
  bool skipped = false;           // nothing was updated
};

// One step: a short list of passes and updates of parameter sets. Ordinary training is one pass and one update; others are other values.
class Step {
 public:
  virtual ~Step() = default;
  virtual StepOutput run(Engine& engine, const StepInput& input) = 0;
  // The losses of samples that nothing is learned from.
  virtual model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const = 0;
  // What must survive a restart beside the parameters: alike on all ranks, by logical name, and what each rank has to itself, under names
  // that all have. The tensors are the step's own: a loader writes into them, before the first step.
  virtual mesh::NamedTensors state() { return {}; }
  virtual mesh::NamedTensors rank_state() { return {}; }
  // Of the last step, for the metrics.
  virtual sync::StepMetrics metrics() { return {}; }
};

// The passes over one micro-batch, of which `last` gives the losses and, where it says so, the gradients.
using Passes = std::function<model::Losses(const parallel::Pass& last)>;
// Those over all micro-batches of a step: one after the other, or as a pipeline.
using Execution = std::function<std::vector<model::Losses>(std::span<const parallel::Pass> micro_batches)>;
Execution in_turn(Passes passes);

// Passes over the batch in micro-batches, then one update of everything. With in_turn(parallel::execute), one pass each: ordinary training.
// Every `check_every` steps (0: never) the passes are made twice, and what they come to must be the same (gradient_sums.h).
std::unique_ptr<Step> make_step(Execution execution, int64_t check_every = 0);
// Likewise; the steps that `recorded` takes are recorded and repeated.
std::unique_ptr<Step> make_cuda_graph_step(Execution execution, std::unique_ptr<CudaGraphStep> recorded);

}  // namespace cairn::train
