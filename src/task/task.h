// A task: what training anything takes, as three functions.
//
//   collate   examples of one micro-batch -> a batch of tensors; pure, on the host, always the same shapes (pad or truncate)
//   loss      random numbers, parameters, batch, whether it trains -> a scalar: the mean over the batch, or a sum and its weight
//   predict   random numbers, parameters, batch -> outputs for each example: their first dim is the batch
//
// The trainer takes gradients of `loss`, whatever happens inside: inner loops, several networks, clipping. It must not communicate with
// other ranks. The random numbers differ from step to step and from micro-batch to micro-batch, and do not depend on the number of ranks.
// Draw from them (normal and uniform below) instead of from ATen's generator, which differs between ranks.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "mesh/batch.h"
#include "task/params.h"

namespace cairn::task {

using Batch = mesh::Batch;  // its ids are the places of its examples in the list they came from
using Outputs = std::map<std::string, at::Tensor>;
using Metrics = std::map<std::string, double>;

// A batch of tensors whose first dim are the examples: batch_of({{"x", x}, {"y", y}}); read by batch.field("x").
Batch batch_of(const std::map<std::string, at::Tensor>& fields);

// Random tensors (float, on the CPU): functions of `random` and the place of the element.
at::Tensor normal(const base::Random& random, at::IntArrayRef shape);
at::Tensor uniform(const base::Random& random, at::IntArrayRef shape);

// What `loss` returns: a mean over the examples or, where examples weigh differently (texts of unequal length), a sum and its weight, so
// that neither micro-batches nor ranks change the result.
struct Loss {
  Loss(at::Tensor mean) : sum(std::move(mean)) {}  // NOLINT: a scalar is a loss
  Loss(at::Tensor sum_of, at::Tensor weight_of) : sum(std::move(sum_of)), weight(std::move(weight_of)) {}
  at::Tensor sum;     // the mean, where there is no weight
  at::Tensor weight;  // undefined: none
};

// Replaces the gradient of `loss`, for methods that are not the gradient of a scalar (DP-SGD): what is summed, and what becomes of the
// sums.
struct TrainStep {
  struct Part {
    Params sums;  // over the examples of the micro-batch; of each parameter's shape
    Loss loss;    // reported; its weight divides the sums
  };
  std::function<Part(const base::Random&, const Params&, const Batch&)> part = {};
  // Once per step: the sums over all micro-batches and ranks, before the division by the total weight. They are the same on all ranks and
  // must stay so: draw noise from the random numbers given. Empty: the identity.
  std::function<Params(const base::Random&, const Params& sums)> finish = {};
  explicit operator bool() const { return part != nullptr; }
};

template <typename Example>
struct Task {
  std::function<Batch(std::span<const Example>)> collate;
  std::function<Loss(const base::Random&, const Params&, const Batch&, bool training)> loss;
  std::function<Outputs(const base::Random&, const Params&, const Batch&)> predict = {};
  // Optional.
  std::function<std::vector<std::string>(const Outputs&)> postprocess = {};      // a text for each example, for people
  std::function<Metrics(std::span<const Example>, const Outputs&)> metric = {};  // finite numbers by name
  TrainStep train_step = {};
};

// The same without the type of the examples: what trainer and predictor work with.
struct TaskFunctions {
  std::function<Loss(const base::Random&, const Params&, const Batch&, bool training)> loss;
  std::function<Outputs(const base::Random&, const Params&, const Batch&)> predict;
  std::function<std::vector<std::string>(const Outputs&)> postprocess;
  TrainStep train_step;
};

// A list of examples by place, owned by somebody else.
struct Examples {
  int64_t count = 0;
  std::function<Batch(std::span<const int64_t> places)> collate = {};
  std::function<Metrics(int64_t first, const Outputs&)> metric = {};  // of the first `first` examples; empty: no metric
};

template <typename Example>
TaskFunctions functions_of(const Task<Example>& task) {
  return {task.loss, task.predict, task.postprocess, task.train_step};
}

// Borrows task and list.
template <typename Example>
Examples examples_of(const Task<Example>& task, const std::vector<Example>& list) {
  Examples examples{.count = static_cast<int64_t>(list.size())};
  examples.collate = [&task, &list](std::span<const int64_t> places) {
    std::vector<Example> some;
    some.reserve(places.size());
    for (const int64_t place : places) some.push_back(list[static_cast<size_t>(place)]);
    return task.collate(std::span<const Example>(some));
  };
  if (task.metric)
    examples.metric = [&task, &list](int64_t first, const Outputs& outputs) {
      return task.metric(std::span<const Example>(list).first(static_cast<size_t>(first)), outputs);
    };
  return examples;
}

}  // namespace cairn::task
