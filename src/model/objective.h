#pragma once
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/axes.h"
#include "mesh/batch.h"
#include "model/values.h"

namespace cairn::model {

// What a pass gives: sums and counts, never means, so that micro-batches, packing and layout cannot change a result.
struct Losses {
  at::Tensor sum = {};         // 0-dim, on the model's device
  at::Tensor count = {};       // 0-dim: tokens or samples that were counted
  at::Tensor per_sample = {};  // [samples]: the sum of each, and what it counts
  at::Tensor per_sample_count = {};
  at::Tensor measures = {};  // double [n]: sums over the samples of what Objective::measures names; undefined where it names nothing
};

// From outputs and batch to losses and the gradients of the outputs.
class Objective {
 public:
  // What the loss separates over: tokens (may be sliced), samples (may be micro-batched), or nothing (needs the whole batch).
  enum class Separates { tokens, samples, nothing };

  virtual ~Objective() = default;
  virtual Separates separates() const = 0;
  // Numbers that say how training goes beside the loss: their means over the samples go into the metrics under these names.
  virtual std::vector<std::string> measures() const { return {}; }
  // Where `gradients` is given, puts there the gradient of weight * sum with respect to each output it read, and may overwrite
  // the outputs in doing so.
  virtual Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double weight, const mesh::Axes& axes) const = 0;
};

// Next-token cross entropy: value "logits" [batch, length, vocab] against field "targets" [batch, length].
std::unique_ptr<Objective> make_next_token();
// Classification: value "logits" [batch, classes] against field "labels" [batch].
std::unique_ptr<Objective> make_classification();

}  // namespace cairn::model
