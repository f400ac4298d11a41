// The matrix products of a linear layer: y = x w^T and its two gradients.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// Every tensor is a matrix whose last dim is contiguous. The row stride is free, so inputs and outputs may be slices of fused buffers. The
// output comes first; it must not overlap an input. Inputs may be bf16 or fp16; the output has their precision, or is an fp32 weight
// gradient. rows, in and out may be 0.

// Overwrites y = x w^T, or y = *onto + x w^T; y may be *onto.  y and *onto [rows, out], x [rows, in], w [out, in].
void linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor* onto = nullptr);

// The input gradient: dx = dy w; with `accumulate` dx += dy w.  dx [rows, in], dy [rows, out], w [out, in].
void linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate = false);

// The weight gradient: dw = dy^T x; with `accumulate` dw += dy^T x.  dw [out, in], dy [rows, out], x [rows, in].
void linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate = false);

namespace reference {
void linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor* onto = nullptr);
void linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate = false);
void linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate = false);
}  // namespace reference

}  // namespace cairn::kernels
