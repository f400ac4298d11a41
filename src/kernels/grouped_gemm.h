// Grouped products: the rows of a matrix lie in consecutive groups, and each group has a weight of its own (the experts of a layer).
#pragma once
#include <ATen/core/ATen_fwd.h>

#include "kernels/row_groups.h"

namespace cairn::kernels {

// As in gemm.h: outputs come first and do not overlap inputs, last dims are contiguous, row strides are free. Weights are stacked,
// [groups, out, in]. Groups may be empty; nothing is padded. One call stands for all groups: on a CPU threads share the tiles of all
// groups, and a group of a few rows (decoding) reads its weight once, in place. Weights of empty groups are not read.

// Overwrites y, whose rows of group g are x_g w_g^T.  y [rows, out], x [rows, in].
void grouped_linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RowGroups& groups);

// Overwrites dx, whose rows of group g are dy_g w_g.  dx [rows, in], dy [rows, out].
void grouped_linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, const RowGroups& groups);

// dw_g = dy_g^T x_g, zero for an empty group; with `accumulate` dw_g += dy_g^T x_g. dw is contiguous, in the inputs' precision or in fp32.
void grouped_linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups,
                                    bool accumulate = false);

// One product after the other by kernels/gemm.h, for any device and precision: what the others are measured against.
namespace reference {
void grouped_linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RowGroups& groups);
void grouped_linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, const RowGroups& groups);
void grouped_linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups,
                                    bool accumulate = false);
}  // namespace reference

}  // namespace cairn::kernels
