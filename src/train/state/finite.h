#pragma once
#include <string>

#include "mesh/named_tensor.h"

namespace cairn::train {

// The name of the first tensor that holds a value that is not finite; empty if all values are finite. Waits for the device once.
std::string first_not_finite(const mesh::NamedTensors& tensors);

}  // namespace cairn::train
