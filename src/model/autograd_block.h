#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "model/block.h"

namespace cairn::model {

// Any differentiable function of inputs and parameters, as ATen operations.
using Differentiable = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs,
                                                             const std::vector<at::Tensor>& parameters, const Call& call)>;

// Turns such a function into a block: autograd runs inside it, and both gradients come out of one backward run. The card
// names the values it reads and writes, in the function's order; its parameters are those of its operations, in order.
std::unique_ptr<Block> make_autograd_block(Card card, Differentiable function);

}  // namespace cairn::model
