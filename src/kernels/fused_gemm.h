// GEMMs of linear layers with a fused epilogue (SwiGLU, its gradient, rotary embedding). On a Hopper GPU one kernel does both, which saves
// a round trip through memory. Elsewhere they call gemm.h, swiglu.h and rope.h one after the other.
#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

#include "kernels/fp8.h"
#include "kernels/rope.h"

namespace cairn::kernels {

// Overwrites gate_up = x w^T and y = silu(gate) * up of its halves.  gate_up [rows, 2 ff], y [rows, ff], x [rows, in], w [2 ff, in].
void linear_swiglu(const at::Tensor& gate_up, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w);
// The same with fp8 operands by rows. `amax` of y as in swiglu.h.
void linear_swiglu(const at::Tensor& gate_up, const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, at::Tensor* amax = nullptr);

// The gradient through the down projection and SwiGLU: with dy = dout w, overwrites dgate_up (which may be gate_up) with the gradient of
// SwiGLU and y with its recomputed output.  dgate_up and gate_up [rows, 2 ff], y [rows, ff], dout [rows, out], w [out, ff].
void linear_swiglu_backward(const at::Tensor& dgate_up, const at::Tensor& y, const at::Tensor& dout, const at::Tensor& w,
                            const at::Tensor& gate_up);

// The heads to rotate: the first `heads` of a row. Every `length` rows are one sequence; its first row has position `position`. A head has
// twice as many columns as the table.
struct RotatedHeads {
  const RopeTable& table;
  int64_t heads, length, position = 0;
};
// Overwrites y = x w^T with rotated heads.  y [rows, out], x [rows, in], w [out, in].
void linear_rope(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RotatedHeads& rotated);
void linear_rope(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const RotatedHeads& rotated);

}  // namespace cairn::kernels
