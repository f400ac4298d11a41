// RMSNorm in plain ATen operations.
#include "kernels/rms_norm.h"

#include "kernels/aten.h"

namespace cairn::kernels::reference {
namespace {

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace

void rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor scale = at::rsqrt(at::mean(x * x, -1, /*keepdim=*/true) + eps);
  rstd.copy_(scale.reshape(rstd.sizes()));
  y.copy_(x * scale * weight);
}

void add_rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& sum, const at::Tensor& x, const at::Tensor& r,
                  const at::Tensor& weight, double eps) {
  sum.copy_(x + r);
  rms_norm(y, rstd, sum, weight, eps);
}

void rms_norm_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor* add) {
  const at::Tensor rows = rows_of(x), scale = rstd.reshape({-1, 1});
  const at::Tensor g = rows_of(dy) * weight;
  const at::Tensor along = at::mean(g * rows, -1, /*keepdim=*/true) * scale * scale;
  at::Tensor gradient = (scale * (g - rows * along)).reshape(x.sizes());
  if (add != nullptr) gradient = gradient + *add;
  dx.copy_(gradient);
}

void rms_norm_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, bool accumulate) {
  const at::Tensor gradient = (rows_of(dy) * rows_of(x) * rstd.reshape({-1, 1})).sum(0);
  accumulate ? dw.add_(gradient) : dw.copy_(gradient);
}

void rms_norm_backward(const RmsNormGradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor* add) {
  rms_norm_backward_weight(into.dw, dy, x, rstd);
  if (into.y) {
    const at::Tensor scale = rstd.view({-1, 1});
    into.y->copy_((x.reshape({-1, x.size(-1)}).to(scale.scalar_type()) * scale * weight).view(x.sizes()));
  }
  rms_norm_backward_input(into.dx, dy, x, weight, rstd, add);  // last: dx may be dy
}

}  // namespace cairn::kernels::reference
