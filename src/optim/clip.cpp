#include "optim/clip.h"

#include "kernels/aten.h"

namespace cairn::optim {

Clip clip(const at::Tensor& sum_of_squares, double scale, double norm_max) {
  const at::Tensor norm = sum_of_squares.sqrt().mul_(scale);
  if (norm_max == 0) return {norm, at::ones({}, norm.options().dtype(at::kFloat))};
  // The small constant is the field's convention; it keeps a zero gradient from dividing by zero.
  return {norm, (norm_max / (norm + 1e-6)).clamp_max_(1.0).to(at::kFloat)};
}

}  // namespace cairn::optim
