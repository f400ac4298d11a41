// Weighted sums of the gradients of parts of a batch, computed so that they can be given up at any block.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/batch.h"
#include "train/engine.h"

namespace cairn::train {

// A part of a batch and the weight of its summed loss.
struct WeightedPart {
  mesh::Batch batch;
  double weight = 1;
};

// Of one part: sums over its samples, without the weight. Undefined where there is none.
struct PartSums {
  at::Tensor loss_sum, measures;
};

// Writes the sum over parts of weight * gradient into Engine::trained.gradients, for a replica that is one rank. `given_up` is asked before
// every block of every pass; once it returns true the rest is left out, the result is nothing and the gradients are undefined. `step`
// selects the random numbers.
std::optional<std::vector<PartSums>> code_gradients(Engine& engine, std::span<const WeightedPart> parts, int64_t step,
                                                    const std::function<bool()>& given_up);

}  // namespace cairn::train
