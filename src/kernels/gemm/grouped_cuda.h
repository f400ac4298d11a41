// Grouped products on a GPU: libtorch's kernel (CUTLASS), which computes all groups at once and leaves the counts on the device.
#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/row_groups.h"

namespace cairn::kernels {

// As in grouped_gemm.h. False: not bf16 on a Hopper GPU, or rows that are not whole 16 bytes; nothing was done.
bool grouped_linear_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RowGroups& groups);
bool grouped_linear_backward_input_on_cuda(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, const RowGroups& groups);
bool grouped_linear_backward_weight_on_cuda(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups,
                                            bool accumulate);

}  // namespace cairn::kernels
