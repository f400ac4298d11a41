// SwiGLU, y = silu(gate) * up, and its gradient.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// Shapes: gate_up and dgate_up [..., 2 * ff], with the gate in the first half of a row and up in the second; y and dy [..., ff].

// Overwrites y. `amax` as in rms_norm.h.
void swiglu(const at::Tensor& y, const at::Tensor& gate_up, at::Tensor* amax = nullptr);

// Overwrites dgate_up, which may be gate_up itself. Where y is given it is overwritten with the recomputed output: the weight gradient of
// the down projection needs it, and recomputing is cheaper than keeping it. *y may be dy.
void swiglu_backward(const at::Tensor& dgate_up, const at::Tensor& dy, const at::Tensor& gate_up, const at::Tensor* y = nullptr,
                     at::Tensor* amax = nullptr);

namespace reference {
void swiglu(const at::Tensor& y, const at::Tensor& gate_up);
void swiglu_backward(const at::Tensor& dgate_up, const at::Tensor& dy, const at::Tensor& gate_up, const at::Tensor* y = nullptr);
}  // namespace reference

}  // namespace cairn::kernels
