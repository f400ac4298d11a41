#pragma once
#include <string>

#include "mesh/named_tensor.h"
#include "mesh/swap/tensor_swapper.h"

namespace cairn::train {

// The name of the first tensor that holds a value that is not finite; empty if all values are finite. Waits for the device once.
std::string first_not_finite(const mesh::NamedTensors& tensors, mesh::TensorSwapper* swapper = nullptr);  // they may be swapped

}  // namespace cairn::train
