// The Step seam: one optimizer step. A method is a final class and one line in step_methods.cpp (docs/adding-a-method.md).
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
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
struct StepPlan;
}  // namespace cairn::parallel

namespace cairn::train {

struct Engine;

// Where a run goes on.
struct ResumePoint {
  int64_t steps_done = 0;                                   // of the snapshot; 0: there is none
  bool resume = false;                                      // an earlier run in the same directory is continued
  int64_t step_last = std::numeric_limits<int64_t>::max();  // what the earlier run did after this step is ignored, and kept as it is
};

// This rank's share of a global batch.
struct BatchShare {
  mesh::Batch batch = {};
  int64_t loss_denominator = 0;   // the loss of the step group is a mean over so many tokens, or samples
  int64_t max_local_samples = 0;  // the most samples that any rank has
};

// The input of a step. It is the same on all ranks of a step group, except for the batch, which is this rank's share.
struct StepInput {
  int64_t step = 1;              // from 1
  const mesh::Batch& batch;      // on the model's device
  int64_t tokens = 0;            // targets of the step group in the global batch
  int64_t loss_denominator = 0;  // the loss of the step group is a mean over so many tokens, or samples
  double learning_rate = 0;
  int64_t update = 1;                // from 1; `step` minus the updates that were skipped
  int64_t max_local_samples = 0;     // the most samples that any rank has
  bool keeps_sample_losses = false;  // StepOutput::sample_losses is wanted (StepNeeds::sample_losses)
  // Which ranks work on which sequences: `batch` then holds those of this rank, ragged (parallel::places_of). Null: no step plans.
  const parallel::StepPlan* plan = nullptr;
  // Makes this rank's share of the batch that comes `steps` steps later. Empty: not available.
  std::function<BatchShare(int64_t steps)> ahead = {};
  // The step calls it before the update; false skips the update. Collective, with the same result on all ranks. Empty: always update.
  std::function<bool(const at::Tensor& loss_sum, const at::Tensor& gradient_norm)> approve = {};
};

// What a step returns: tensors of one element, still on the device, so that the host does not wait for them.
struct StepOutput {
  at::Tensor loss_sum = {};       // over this rank's samples
  at::Tensor gradient_norm = {};  // of the whole model, the same on all ranks of the step group
  at::Tensor measures = {};       // sums of the objective's measures over this rank's samples; undefined: none
  // Where they were asked for: the unweighted sum of the losses of each of this rank's samples, and their number. Undefined on ranks that
  // compute no losses.
  at::Tensor sample_losses = {}, sample_counts = {};
  bool skipped = false;  // nothing was updated
};

// One step: passes over the batch, then an update of the parameters. Ordinary training (steps/gradient_step.cpp), preference learning
// (dpo_step.cpp), zeroth-order training (one_byte_step.cpp) and a saddle-point method (masha_step.cpp) implement it. Collective.
class Step {
 public:
  virtual ~Step() = default;
  // Before the first step: parameters have their first values, or those of a snapshot. Returns the step to resume from; later than that of
  // the snapshot if the step has a record of more steps.
  virtual int64_t begin(Engine& /*engine*/, const ResumePoint& from) { return from.steps_done; }
  virtual StepOutput run(Engine& engine, const StepInput& input) = 0;
  // The losses of a batch, without an update.
  virtual model::Losses evaluate(Engine& engine, const mesh::Batch& batch) const = 0;
  // State for snapshots, beside parameters and optimizer. `state` is identical on all ranks. `rank_state` differs by rank, under names
  // that are the same on all ranks. The tensors are the live ones: a loader writes into them before the first step.
  virtual mesh::NamedTensors state() { return {}; }
  virtual mesh::NamedTensors rank_state() { return {}; }
  // Numbers of the last step, for the metrics.
  virtual sync::StepMetrics metrics() { return {}; }
};

// Runs the passes over one micro-batch. `last` is the pass that gives the losses and, if it has a gradient sink, the gradients.
using Passes = std::function<model::Losses(const parallel::Pass& last)>;
// Runs the passes over all micro-batches of a step: one after the other, or as a pipeline.
using Execution = std::function<std::vector<model::Losses>(std::span<const parallel::Pass> micro_batches)>;
Execution in_turn(Passes passes);

// Passes over the batch in micro-batches (gradient accumulation), then one update of everything. With in_turn(parallel::execute) this is
// ordinary training. Every `check_every` steps (0: never) the passes run twice and must give bitwise identical gradients.
std::unique_ptr<Step> make_step(Execution execution, int64_t check_every = 0);

}  // namespace cairn::train
