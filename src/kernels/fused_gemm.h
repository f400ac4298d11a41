// Products of a linear layer together with what is done to their results at once. On a Hopper GPU one kernel does both, so that what is in
// between is not written only to be read again; elsewhere they are the functions of gemm.h, swiglu.h and rope.h in a row.
#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

#include "kernels/fp8.h"
#include "kernels/rope.h"

namespace cairn::kernels {

// gate_up = x w^T, and y = silu(gate) * up of its halves.  gate_up [rows, 2 ff], y [rows, ff], x [rows, in], w [2 ff, in].
void linear_swiglu(const at::Tensor& gate_up, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w);
// The same of codes by rows. `amax`, of y, as in swiglu.h.
void linear_swiglu(const at::Tensor& gate_up, const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, at::Tensor* amax = nullptr);

// The gradient of SwiGLU from that of the layer after it: dgate_up from dout w and gate_up, whose place it may take, and y once more.
// dgate_up and gate_up [rows, 2 ff], y [rows, ff], dout [rows, out], w [out, ff].
void linear_swiglu_backward(const at::Tensor& dgate_up, const at::Tensor& y, const at::Tensor& dout, const at::Tensor& w,
                            const at::Tensor& gate_up);

// y = x w^T, of which the first `heads` heads are turned: every `length` rows by the angles of positions from `position` on.
// y [rows, out], x [rows, in], w [out, in]; a head has twice as many columns as the table.
struct RotatedHeads {
  const RopeTable& table;
  int64_t heads, length, position = 0;
};
void linear_rope(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RotatedHeads& rotated);
void linear_rope(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const RotatedHeads& rotated);

}  // namespace cairn::kernels
