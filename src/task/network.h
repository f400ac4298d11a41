// Any model of Cairn's as a function of plain tensors: what a task's loss and predict call.
#pragma once
#include <memory>
#include <string>

#include "model/model.h"
#include "task/task.h"

namespace cairn::task {

// Runs the plain forms of a model's blocks as one graph of ATen operations, so that gradients of any order can be taken through it. (The
// trainer of recipes runs their hand-written gradients, which is quicker and needs less memory.) Stateless: any thread may call it.
class Network {
 public:
  explicit Network(std::unique_ptr<model::Model> model, const at::Device& device = at::Device(at::kCPU));

  // The model's starting values.
  Params start(const base::Random& random) const;
  // What the blocks write under this name, from the batch's fields.
  at::Tensor run(const Params& params, const Batch& batch, const std::string& output = "logits") const;

 private:
  std::unique_ptr<model::Model> model_;
  model::Buffers buffers_;
};

}  // namespace cairn::task
