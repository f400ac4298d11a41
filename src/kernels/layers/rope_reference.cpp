// Rotary position embedding in plain ATen operations, and its table.
#include "kernels/rope.h"

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::kernels {

RopeTable rope_table(int64_t length, int64_t head_dim, double theta, const at::TensorOptions& options) {
  CAIRN_CHECK(head_dim % 2 == 0, "head_dim {} is odd", head_dim);
  const at::TensorOptions wide = at::TensorOptions().dtype(at::kDouble).device(at::kCPU);
  const at::Tensor frequencies = at::pow(theta, at::arange(0, head_dim, 2, wide) * (-1.0 / static_cast<double>(head_dim)));
  const at::Tensor angles = at::outer(at::arange(length, wide), frequencies);
  return {at::cos(angles).to(options), at::sin(angles).to(options)};
}

namespace reference {

void rope(const at::Tensor& x, const RopeTable& table, int64_t position, bool inverse) {
  const int64_t half = x.size(3) / 2;
  const at::Tensor cos = table.cos.narrow(0, position, x.size(1)).unsqueeze(1).to(x.scalar_type());
  const at::Tensor sin = table.sin.narrow(0, position, x.size(1)).unsqueeze(1).to(x.scalar_type()) * (inverse ? -1.0 : 1.0);
  const at::Tensor first = x.narrow(3, 0, half), second = x.narrow(3, half, half);
  const at::Tensor rotated = first * cos - second * sin;
  second.copy_(second * cos + first * sin);
  first.copy_(rotated);
}

}  // namespace reference
}  // namespace cairn::kernels
