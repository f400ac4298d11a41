#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::optim {

// The norm of the whole gradient, and the factor that brings it down to at most `norm_max`. Both are one element on the device, so nothing
// waits for the device.
struct Clip {
  at::Tensor norm;
  at::Tensor factor;  // float
};

// `sum_of_squares` is that of the whole gradient before scaling; `scale` is what the gradient is still to be multiplied by. norm_max = 0
// does not clip.
Clip clip(const at::Tensor& sum_of_squares, double scale, double norm_max);

}  // namespace cairn::optim
