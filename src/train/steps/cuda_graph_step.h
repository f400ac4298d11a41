#pragma once
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/pass.h"

namespace cairn::parallel {
class GradientReducer;
}

namespace cairn::train {

class DeviceGraph;

// Steps on a GPU whose kernels are captured once in a CUDA graph and then replayed together, so that a small model does not wait for the
// host to launch them one by one. The first few steps of each batch shape run as usual, and so do rare shapes.
//
// A graph repeats what the device did. It would also repeat what the host decides anew in every step (dropout, messages to other ranks):
// features.cpp refuses these. The batches and the optimizer's numbers may change: a graph reads them from fixed places.
class CudaGraphStep {
 public:
  using MakeGraph = std::function<std::unique_ptr<DeviceGraph>()>;
  // What a step does on the device: passes over micro-batches, and the update with the optimizer's `numbers` (undefined: no update).
  // Returns the tensors that it leaves there; some may be undefined.
  using Work = std::function<std::vector<at::Tensor>(std::span<const parallel::Pass> passes, const at::Tensor& numbers)>;

  CudaGraphStep(parallel::GradientReducer& reducer, MakeGraph make_graph);
  ~CudaGraphStep();

  // Whether run() is for this step: batches of its shape have come before, and there is memory for one more graph. Call it once a step.
  bool should_replay(std::span<const parallel::Pass> passes);
  // Runs the step that should_replay() saw last, and marks all its gradients complete. `work` is called while it is captured, and must do
  // then what it would do later.
  std::vector<at::Tensor> run(std::span<const parallel::Pass> passes, const at::Tensor& numbers, const Work& work);

 private:
  struct Shape;

  Shape& remember(std::string name);
  void capture(Shape& one, std::span<const parallel::Pass> passes, const at::Tensor& numbers, const Work& work);

  parallel::GradientReducer& reducer_;
  MakeGraph make_graph_;
  std::list<Shape> shapes_;
  Shape* current_ = nullptr;  // of shapes_
  int captures_ = 0;
};

}  // namespace cairn::train
