// The products of a linear layer on a GPU, by cuBLASLt: sums start from what is there already, or from a third matrix, without a pass of
// their own, and low-precision products may be summed up in fp32.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// As in gemm.h. False: not for it, and nothing was done.
bool linear_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor* onto);
bool linear_backward_input_on_cuda(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate);
bool linear_backward_weight_on_cuda(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

}  // namespace cairn::kernels
