#pragma once
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/axes.h"
#include "mesh/batch.h"
#include "model/values.h"

namespace cairn::model {

// The losses of a pass: sums and counts, never means, so that micro-batches, packing and sharding do not change the result.
struct Losses {
  at::Tensor sum = {};         // 0-dim, on the model's device
  at::Tensor count = {};       // 0-dim: tokens or samples with a loss
  at::Tensor per_sample = {};  // [samples]: the sum and the count of each
  at::Tensor per_sample_count = {};
  at::Tensor measures = {};  // double [n]: sums of Objective::measures; undefined where there are none
};

// A training objective: from outputs and batch to losses and the gradients of the outputs. Stateless.
class Objective {
 public:
  // What the loss is a sum over: tokens (sequences may be sliced), samples (batches may be micro-batched), or nothing (it needs the whole
  // batch at once).
  enum class Separates { tokens, samples, nothing };

  virtual ~Objective() = default;
  virtual Separates separates() const = 0;
  // Further metrics, by name. The run divides their sums by the count of the loss.
  virtual std::vector<std::string> measures() const { return {}; }
  // Whether "logits" may be a ChunkedLogits, with gradients and without.
  virtual bool reads_chunks() const { return false; }
  // Where `gradients` is given, adds the gradient of weight * sum with respect to each output that it reads. The outputs may be overwritten
  // by their gradients. `axes` serves outputs that are sharded along tp.
  virtual Losses evaluate(Values& outputs, const mesh::Batch& batch, Values* gradients, double weight, const mesh::Axes& axes) const = 0;
};

// Next-token cross entropy of value "logits" [batch, length, vocab] and field "targets" [batch, length].
std::unique_ptr<Objective> make_next_token();
// Classification: cross entropy of value "logits" [batch, classes] and field "labels" [batch].
std::unique_ptr<Objective> make_classification();

}  // namespace cairn::model
