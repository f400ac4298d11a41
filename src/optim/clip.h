#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::optim {

// The norm of a gradient and the factor that brings it to at most `norm_max`: both one element on the device, so nothing waits.
struct Clip {
  at::Tensor norm;
  at::Tensor factor;  // float
};

// `sum_of_squares` is over the whole gradient before scaling; `scale` is what the gradient still has to be multiplied by. norm_max 0: no
// clipping.
Clip clip(const at::Tensor& sum_of_squares, double scale, double norm_max);

}  // namespace cairn::optim
