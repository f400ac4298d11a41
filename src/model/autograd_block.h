#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "model/block.h"

namespace cairn::model {

// A function of inputs and parameters in differentiable ATen operations.
using Differentiable = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs,
                                                             const std::vector<at::Tensor>& parameters, const Call& call)>;

// Makes a block of such a function. Autograd runs inside the block, and one backward run gives both gradients. The card names the values
// that the function reads and writes, in its order; its parameters are those of the card's operations, in order.
std::unique_ptr<Block> make_autograd_block(Card card, Differentiable function);

}  // namespace cairn::model
