#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "mesh/batch.h"

namespace cairn::train {

struct Engine;

// What one step is given. All ranks are given the same but for the batch, which is this rank's share.
struct StepInput {
  int64_t step = 1;  // counts from 1
  const mesh::Batch& batch;
  int64_t tokens = 0;  // counted in the global batch
  double learning_rate = 0;
  int64_t update = 1;  // counts from 1; behind `step` by the updates that were skipped
  // Asked before anything is updated, alike on all ranks; false skips the update. Empty: always.
  std::function<bool(const at::Tensor& loss_sum, const at::Tensor& gradient_norm)> approve = {};
};

// What it leaves: one element each, still on the device, so that nothing waits for them here.
struct StepOutput {
  at::Tensor loss_sum = {};       // over this rank's samples
  at::Tensor gradient_norm = {};  // of the whole model, alike on all ranks
  bool skipped = false;           // nothing was updated
};

// One step: a short list of passes and updates of parameter sets. Ordinary training is one pass and one update; others are other values.
class Step {
 public:
  virtual ~Step() = default;
  virtual StepOutput run(Engine& engine, const StepInput& input) = 0;
};

// Forward and backward over the batch in micro-batches, then one update of everything.
std::unique_ptr<Step> make_ordinary_step();

}  // namespace cairn::train
