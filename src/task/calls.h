// Calls of a task's functions, with what they return checked: an error names the function and what it should have returned.
#pragma once
#include <cstdint>
#include <span>

#include "task/task.h"

namespace cairn::task {

// The batch of these places, on the device; its ids are the places.
Batch collated(const Examples& examples, std::span<const int64_t> places, const at::Device& device);

// A loss as sums: a scalar with its graph, and what it is over (double, on the same device).
struct WeightedLoss {
  at::Tensor sum;
  at::Tensor weight;
};
// Of the loss of a batch of so many examples.
WeightedLoss weighted_loss(const Loss& loss, int64_t examples);
WeightedLoss loss_of(const TaskFunctions& functions, const base::Random& random, const Params& params, const Batch& batch, bool training);

Outputs outputs_of(const TaskFunctions& functions, const base::Random& random, const Params& params, const Batch& batch);

// The metrics of the first examples, each a finite number: JSON, in which they are written down, has no others.
Metrics metrics_of(const Examples& examples, int64_t first, const Outputs& outputs);

// The gradients of a loss that was computed with these parameters. Refuses one that depends on none of them.
Params gradients_of(const WeightedLoss& loss, const Params& params);

// What train_step makes of a batch, and of the sums of all: of each parameter's shape.
TrainStep::Part partial_sums(const TaskFunctions& functions, const base::Random& random, const Params& params, const Batch& batch);
Params finish_sums(const TaskFunctions& functions, const base::Random& random, const Params& sums);

}  // namespace cairn::task
