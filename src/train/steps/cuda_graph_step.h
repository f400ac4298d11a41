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
struct Plan;
}  // namespace cairn::parallel

namespace cairn::train {

class DeviceGraph;
struct Settings;

// Steps on a GPU whose kernels are recorded once and from then on started together (a CUDA graph), so that a small model does not wait for
// the host that starts them one by one. The first few with batches of a shape are made as ever; so are those with shapes that seldom come.
//
// A recording repeats what the device did. What the host decides anew in every step (what is dropped out, messages to other ranks) it would
// repeat as well: check_cuda_graph refuses that. What it may decide are the batches and the optimizer's numbers, which have their places.
class CudaGraphStep {
 public:
  using MakeGraph = std::function<std::unique_ptr<DeviceGraph>()>;
  // What a step does on the device, with micro-batches and an optimizer's numbers (undefined: the update is no part of it), and the tensors
  // that it leaves there, of which some may be undefined.
  using Work = std::function<std::vector<at::Tensor>(std::span<const parallel::Pass> passes, const at::Tensor& numbers)>;

  CudaGraphStep(parallel::GradientReducer& flow, MakeGraph make_graph);
  ~CudaGraphStep();

  // Whether run() is for this step: batches of its shape have come before, and there is memory for one more recording. Asked once a step.
  bool should_replay(std::span<const parallel::Pass> passes);
  // The step that takes() was asked about last, with all gradients announced to the flow. `work` is called when it is recorded, and must
  // do then what it would do later.
  std::vector<at::Tensor> run(std::span<const parallel::Pass> passes, const at::Tensor& numbers, const Work& work);

 private:
  struct Shape;

  Shape& remember(std::string name);
  void capture(Shape& one, std::span<const parallel::Pass> passes, const at::Tensor& numbers, const Work& work);

  parallel::GradientReducer& flow_;
  MakeGraph make_graph_;
  std::list<Shape> shapes_;
  Shape* current_ = nullptr;  // of shapes_
  int captures_ = 0;
};

void check_cuda_graph(const Settings& settings, const parallel::Plan& plan);

}  // namespace cairn::train
