// Calls a task's functions and checks what they return. An error names the function and what it should have returned.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "task/task.h"

namespace cairn::task {

class Deployer;

// The batch of the examples at these places, on the device. Its ids are the places.
Batch collated(const Examples& examples, std::span<const int64_t> places, const at::Device& device);

// A loss as a sum and its weight (the denominator; double, on the same device). The sum is a scalar with its autograd graph.
struct WeightedLoss {
  at::Tensor sum;
  at::Tensor weight;
};
// The loss of a batch of `examples` examples as sum and weight.
WeightedLoss weighted_loss(const Loss& loss, int64_t examples);
WeightedLoss loss_of(const TaskFunctions& functions, const base::Random& random, const Params& params, const Batch& batch, bool training);

Outputs outputs_of(const TaskFunctions& functions, const base::Random& random, const Params& params, const Batch& batch);

// The metrics of the first examples. Refuses a number that is not finite: JSON cannot hold it.
Metrics metrics_of(const Examples& examples, int64_t first, const Outputs& outputs);

// The gradients of a loss with respect to these parameters. Refuses a loss that depends on none of them.
Params gradients_of(const WeightedLoss& loss, const Params& params);

// train_step.part of a batch, and train_step.finish of the sums over all batches. Both have the shapes of the parameters.
TrainStep::Part partial_sums(const TaskFunctions& functions, const base::Random& random, const Params& params, const Batch& batch);
Params finish_sums(const TaskFunctions& functions, const base::Random& random, const Params& sums);

// Checks a task before it trains for hours (sanity.cpp): runs one batch through loss and, where they exist, predict, postprocess and
// metric. Refuses a loss that is not a finite scalar. Leaves ATen's random generators as they were. Returns the names of the metrics that
// evaluations will have.
std::vector<std::string> check_task(const Deployer& deployer, const TaskFunctions& functions, const Params& params,
                                    const Examples& examples, int64_t batch);

}  // namespace cairn::task
