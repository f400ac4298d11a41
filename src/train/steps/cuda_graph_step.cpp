// Capture and replay of CUDA graphs. A batch shape S is all that a graph fixes: sizes and types of the batch tensors, and the weight of the
// loss, of every pass. For each step of shape S:
//
//   the first kWarmupSteps    no graph: libraries choose kernels and allocate workspaces
//   then, once                capture: copy batches and optimizer scalars into buffers that the graph owns; call `work` on a capturing
//                             stream, where kernels are captured and do not run; then replay the graph for this step
//   later                     replay: copy batches and scalars into the same buffers, and launch the graph
//
// A replay runs no host code, so no gradient hooks fire: mark_all_complete informs the gradient reducer. Results are cloned, because the
// next replay overwrites them. A graph keeps its own memory for all activations, so there are at most kMaxCaptures. At most kMaxShapes
// shapes are counted; the oldest without a graph is dropped first.
#include "train/steps/cuda_graph_step.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "parallel/state/gradient_reducer.h"
#include "train/steps/device_graph.h"

namespace cairn::train {
namespace {

// The shape S as a string.
std::string shape_of(std::span<const parallel::Pass> passes) {
  std::string shape;
  const auto add = [&](const std::string& name, const at::Tensor& x) {
    shape += fmt::format("{} {} ", name, static_cast<int>(x.scalar_type()));
    for (const int64_t size : x.sizes()) shape += fmt::format("{} ", size);
  };
  for (const parallel::Pass& pass : passes) {
    shape += fmt::format("pass {} ", pass.weight);
    add("ids", pass.batch.ids);
    if (pass.batch.weights.defined()) add("weights", pass.batch.weights);
    for (const auto& [name, field] : pass.batch.fields) add(name, field.tensor);
  }
  return shape;
}

mesh::Batch copy_of(const mesh::Batch& batch) {
  mesh::Batch copy = batch;
  copy.ids = batch.ids.clone();
  if (batch.weights.defined()) copy.weights = batch.weights.clone();
  for (auto& [name, field] : copy.fields) field.tensor = field.tensor.clone();
  return copy;
}

void fill(const mesh::Batch& to, const mesh::Batch& from) {
  to.ids.copy_(from.ids, /*non_blocking=*/true);
  if (to.weights.defined()) to.weights.copy_(from.weights, true);
  for (const auto& [name, field] : to.fields) field.tensor.copy_(from.field(name), true);
}

constexpr int kWarmupSteps = 3;  // for each shape
constexpr int kMaxCaptures = 2;  // over all shapes
constexpr size_t kMaxShapes = 16;

}  // namespace

struct CudaGraphStep::Shape {
  std::string name;
  int seen = 0;
  std::unique_ptr<DeviceGraph> graph = {};  // null before the capture
  // The graph's fixed buffers: inputs and results.
  std::vector<parallel::Pass> passes = {};
  at::Tensor numbers = {};
  std::vector<at::Tensor> found = {};
};

CudaGraphStep::CudaGraphStep(parallel::GradientReducer& reducer, MakeGraph make_graph)
    : reducer_(reducer), make_graph_(std::move(make_graph)) {}
CudaGraphStep::~CudaGraphStep() = default;

bool CudaGraphStep::should_replay(std::span<const parallel::Pass> passes) {
  Shape& one = remember(shape_of(passes));
  current_ = &one;
  return one.graph || (one.seen++ >= kWarmupSteps && captures_ < kMaxCaptures);
}

std::vector<at::Tensor> CudaGraphStep::run(std::span<const parallel::Pass> passes, const at::Tensor& numbers, const Work& work) {
  CAIRN_CHECK(current_, "run() without should_replay()");
  Shape& one = *std::exchange(current_, nullptr);
  if (!one.graph) {
    capture(one, passes, numbers, work);
  } else {
    CAIRN_CHECK(numbers.defined() == one.numbers.defined(), "a step with{} update was captured {}", numbers.defined() ? "" : "out",
                one.numbers.defined() ? "with it" : "without it");
    for (size_t i = 0; i < passes.size(); ++i) fill(one.passes[i].batch, passes[i].batch);
    if (numbers.defined()) one.numbers.copy_(numbers, /*non_blocking=*/true);
    reducer_.mark_all_complete();
  }
  one.graph->replay();
  std::vector<at::Tensor> found;  // clones: the next replay overwrites the originals
  for (const at::Tensor& left : one.found) found.push_back(left.defined() ? left.clone() : left);
  return found;
}

CudaGraphStep::Shape& CudaGraphStep::remember(std::string name) {
  const auto found = std::find_if(shapes_.begin(), shapes_.end(), [&](const Shape& one) { return one.name == name; });
  if (found != shapes_.end()) return *found;
  if (shapes_.size() == kMaxShapes)
    shapes_.erase(std::find_if(shapes_.begin(), shapes_.end(), [](const Shape& one) { return !one.graph; }));
  return shapes_.emplace_back(Shape{.name = std::move(name)});
}

void CudaGraphStep::capture(Shape& one, std::span<const parallel::Pass> passes, const at::Tensor& numbers, const Work& work) {
  for (const parallel::Pass& pass : passes) {
    one.passes.push_back(pass);
    one.passes.back().batch = copy_of(pass.batch);
  }
  if (numbers.defined()) {
    one.numbers = at::empty_like(numbers, at::TensorOptions().device(passes[0].batch.ids.device()).pinned_memory(false));
    one.numbers.copy_(numbers, /*non_blocking=*/true);
  }
  std::unique_ptr<DeviceGraph> graph = make_graph_();
  try {
    graph->capture([&one, work] { one.found = work(one.passes, one.numbers); });
  } catch (const std::exception& error) {
    base::fail_input("train.cuda_graph = true: the steps of this model cannot be captured ({}): leave it out", error.what());
  }
  if (!reducer_.is_complete())
    base::fail_input("train.cuda_graph = true: some parameters get no gradient in a pass, which a graph cannot express: leave it out");
  one.graph = std::move(graph);
  ++captures_;
}

}  // namespace cairn::train
