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

// Runs the kernels of a step as a CUDA graph: captured once for each batch shape, then replayed with one launch. A small model then does
// not wait for the host to launch kernels one by one. The first steps of each shape, and rare shapes, run without a graph.
//
// A graph repeats exactly what was captured, also decisions that the host makes anew in every step (dropout, messages to other ranks):
// features.cpp refuses these. Batches and the optimizer's scalars may change, because a graph reads them from fixed buffers.
class CudaGraphStep {
 public:
  using MakeGraph = std::function<std::unique_ptr<DeviceGraph>()>;
  // The work of a step on the device: passes over micro-batches, and the update with the optimizer's scalars `numbers` (undefined: no
  // update). Returns the result tensors on the device; some may be undefined.
  using Work = std::function<std::vector<at::Tensor>(std::span<const parallel::Pass> passes, const at::Tensor& numbers)>;

  CudaGraphStep(parallel::GradientReducer& reducer, MakeGraph make_graph);
  ~CudaGraphStep();

  // Whether this step should use run(): a graph of its batch shape exists, or the shape is frequent and may be captured now. Call it once a
  // step.
  bool should_replay(std::span<const parallel::Pass> passes);
  // Runs the step of the last should_replay() call, and marks all its gradients complete. `work` is called only for the capture, and must
  // enqueue what every later step needs.
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
