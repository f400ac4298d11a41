// RMSNorm on a GPU. A build without CUDA has these functions too; they return false.
#pragma once
#include <ATen/core/ATen_fwd.h>

#include "kernels/rms_norm.h"

namespace cairn::kernels {

// As in rms_norm.h, where r and sum are null for a plain norm. Each starts its kernels on the current stream of x's device and returns
// true; false, with nothing done, if there is none for these tensors.
bool rms_norm_on_cuda(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor* sum, const at::Tensor& x, const at::Tensor* r,
                      const at::Tensor& weight, double eps, at::Tensor* amax);
bool rms_norm_backward_input_on_cuda(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& rstd, const at::Tensor* add, at::Tensor* amax);
bool rms_norm_backward_weight_on_cuda(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                                      bool accumulate);

bool rms_norm_backward_on_cuda(const RmsNormGradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& rstd, const at::Tensor* add);
bool has_fused_backward_on_cuda(const at::Tensor& x);

}  // namespace cairn::kernels
