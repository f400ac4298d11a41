// The matrix products of a linear layer: y = x w^T and its two gradients.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// Every tensor is a matrix whose last dim is contiguous; rows may lie apart, so a slice of a fused buffer works, as input and
// as output. Inputs may be bf16 or fp16; the output has their precision, or is the fp32 weight gradient. The output comes first and is
// written in place; it may not overlap an input. rows, in and out may be 0.

// y = x w^T, or *onto + x w^T.  y and *onto [rows, out], y is overwritten and may be *onto; x [rows, in], w [out, in].
void linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor* onto = nullptr);

// The input gradient, dx = dy w, or dx += dy w.  dx [rows, in], dy [rows, out], w [out, in].
void linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate = false);

// The weight gradient, dw = dy^T x, or dw += dy^T x.  dw [out, in], dy [rows, out], x [rows, in].
void linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate = false);

namespace reference {
void linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor* onto = nullptr);
void linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate = false);
void linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate = false);
}  // namespace reference

}  // namespace cairn::kernels
