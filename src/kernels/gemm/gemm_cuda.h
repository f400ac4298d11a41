// The GEMMs of a linear layer on a GPU, by cuBLASLt. Accumulation onto the output or onto a third matrix is part of the GEMM, and bf16
// inputs may be summed into fp32.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// As in gemm.h. False: no kernel for these tensors; nothing was done.
bool linear_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor* onto);
bool linear_backward_input_on_cuda(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate);
bool linear_backward_weight_on_cuda(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

}  // namespace cairn::kernels
