#include "kernels/fused_product.h"

#include "kernels/aten.h"
#include "kernels/fused_product_cuda.h"
#include "kernels/gemm.h"
#include "kernels/swiglu.h"

namespace cairn::kernels {

at::Tensor linear_sums(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) {
  if (at::Tensor parts = linear_sums_on_cuda(y, x, w); parts.defined()) return parts;
  linear(y, x, w);
  return {};
}

void linear_swiglu(const at::Tensor& gate_up, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) {
  if (linear_swiglu_on_cuda(gate_up, y, x, w)) return;
  linear(gate_up, x, w);
  swiglu(y, gate_up);
}

void linear_input_swiglu(const at::Tensor& dgate_up, const at::Tensor& y, const at::Tensor& dout, const at::Tensor& w,
                         const at::Tensor& gate_up) {
  if (linear_input_swiglu_on_cuda(dgate_up, y, dout, w, gate_up)) return;
  linear_input(y, dout, w);  // for a moment it holds its own gradient
  swiglu_backward(dgate_up, y, gate_up, &y);
}

void linear_rope(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const Turned& turned) {
  if (linear_rope_on_cuda(y, x, w, turned)) return;
  linear(y, x, w);
  const int64_t head_dim = 2 * turned.table.cos.size(1);
  rope(y.view({-1, turned.length, y.size(1) / head_dim, head_dim}).narrow(2, 0, turned.heads), turned.table, turned.position);
}

}  // namespace cairn::kernels
