// RMSNorm, y = x / rms(x) * weight, with the residual addition before it and its two gradients.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// x, y and their gradients are [..., embed] (all leading dims together are the rows), weight is [embed], rstd is [rows] and
// holds 1 / sqrt(mean(x^2) + eps), which the gradients need. Where x is bf16 or fp16, rstd and dw are fp32.

// Overwrites y and rstd. y may be x. `amax`, here and below: becomes the largest magnitude of the result, as to_fp8 takes it (fp8.h),
// where that costs nothing; else it stays as it is.
void rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight, double eps,
              at::Tensor* amax = nullptr);

// sum = x + r, then y and rstd are the norm of sum. Overwrites all three; sum may be x or r.
void add_rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& sum, const at::Tensor& x, const at::Tensor& r,
                  const at::Tensor& weight, double eps);

// The input gradient, plus *add where given (the gradient that went round the norm on the residual path).
// Overwrites dx, which may be dy or *add. x is what the norm was taken of.
void rms_norm_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor* add = nullptr, at::Tensor* amax = nullptr);

// The weight gradient: dw [embed] = or += sum over rows of dy * x * rstd. The same bits for every thread count.
void rms_norm_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                              bool accumulate = false);

// All gradients of a norm at once: dx as rms_norm_backward_input gives it, dw [embed] as rms_norm_backward_weight does, and where y is
// given, what the norm came to, so that it need not be kept. dx may be dy or *add.
struct RmsNormGradients {
  const at::Tensor& dx;
  const at::Tensor& dw;
  const at::Tensor* y = nullptr;
  at::Tensor* amax = nullptr;  // of dx
};
void rms_norm_backward(const RmsNormGradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor* add = nullptr);
// Whether that is one pass over such an x, and so costs hardly more than dx alone.
bool has_fused_backward(const at::Tensor& x);

namespace reference {
void rms_norm_backward(const RmsNormGradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor* add = nullptr);
void rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight, double eps);
void add_rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& sum, const at::Tensor& x, const at::Tensor& r,
                  const at::Tensor& weight, double eps);
void rms_norm_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor* add = nullptr);
void rms_norm_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                              bool accumulate = false);
}  // namespace reference

}  // namespace cairn::kernels
