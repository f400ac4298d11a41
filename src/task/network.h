// Any model of Cairn as a function of plain tensors, for a task's loss and predict.
#pragma once
#include <memory>
#include <string>

#include "model/model.h"
#include "task/task.h"

namespace cairn::task {

// Runs the plain forms of a model's blocks as one autograd graph, so that gradients of any order can be taken through it. (The trainer of
// recipes runs hand-written gradients, which are faster and need less memory.) Stateless and thread-safe.
class Network {
 public:
  explicit Network(std::unique_ptr<model::Model> model, const at::Device& device = at::Device(at::kCPU));

  // The model's starting values.
  Params start(const base::Random& random) const;
  // The value that the blocks write under this name, computed from the batch's fields.
  at::Tensor run(const Params& params, const Batch& batch, const std::string& output = "logits") const;

 private:
  std::unique_ptr<model::Model> model_;
  model::Buffers buffers_;
};

}  // namespace cairn::task
