// RMSNorm, y = x / rms(x) * weight, with an optional residual addition before it, and its two gradients.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// Shapes: x, y and their gradients [..., embed], where all leading dims together are the rows; weight and dw [embed]; rstd [rows]. rstd
// holds 1 / sqrt(mean(x^2) + eps), which the gradients need. Where x is bf16 or fp16, rstd and dw are fp32.
//
// `amax`, here and below: set to the largest magnitude of the result, as to_fp8 takes it (fp8.h), where the kernel gets it for free;
// otherwise unchanged.

// Overwrites y and rstd. y may be x.
void rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight, double eps,
              at::Tensor* amax = nullptr);

// Overwrites sum = x + r, then y and rstd with the norm of sum. sum may be x or r.
void add_rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& sum, const at::Tensor& x, const at::Tensor& r,
                  const at::Tensor& weight, double eps);

// Overwrites dx with the input gradient, plus *add where given (the gradient of the residual path around the norm). dx may be dy or *add. x
// is the input of the norm.
void rms_norm_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor* add = nullptr, at::Tensor* amax = nullptr);

// The weight gradient: dw = sum over rows of dy * x * rstd; with `accumulate` dw += that. It does not depend on the thread count.
void rms_norm_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                              bool accumulate = false);

// Both gradients at once. Overwrites dx as rms_norm_backward_input does, dw as rms_norm_backward_weight does, and where y is given *y with
// the recomputed output of the norm, so that it need not be kept. dx may be dy or *add.
struct RmsNormGradients {
  const at::Tensor& dx;
  const at::Tensor& dw;
  const at::Tensor* y = nullptr;
  at::Tensor* amax = nullptr;  // of dx
};
void rms_norm_backward(const RmsNormGradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor* add = nullptr);
// Whether rms_norm_backward is one pass over such an x. Then it costs hardly more than dx alone.
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
