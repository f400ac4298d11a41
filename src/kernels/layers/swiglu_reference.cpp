// SwiGLU in plain ATen operations.
#include "kernels/swiglu.h"

#include "kernels/aten.h"

namespace cairn::kernels::reference {

void swiglu(const at::Tensor& y, const at::Tensor& gate_up) {
  const std::vector<at::Tensor> halves = gate_up.chunk(2, -1);
  y.copy_(halves[0] * at::sigmoid(halves[0]) * halves[1]);
}

void swiglu_backward(const at::Tensor& dgate_up, const at::Tensor& dy, const at::Tensor& gate_up, const at::Tensor* y) {
  const std::vector<at::Tensor> halves = gate_up.chunk(2, -1);
  const at::Tensor& gate = halves[0];
  const at::Tensor& up = halves[1];
  const at::Tensor sigmoid = at::sigmoid(gate), silu = gate * sigmoid;
  const at::Tensor dgate = dy * up * sigmoid * (1 + gate * (1 - sigmoid)), dup = dy * silu;
  const at::Tensor again = silu * up;
  const std::vector<at::Tensor> gradients = dgate_up.chunk(2, -1);
  gradients[0].copy_(dgate);
  gradients[1].copy_(dup);
  if (y != nullptr) y->copy_(again);
}

}  // namespace cairn::kernels::reference
