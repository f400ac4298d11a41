#include "kernels/fused_product.h"

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/fused_product_cuda.h"
#include "kernels/gemm.h"
#include "kernels/swiglu.h"

namespace cairn::kernels {
namespace {

bool is_matrix(const at::Tensor& x, int64_t rows, int64_t columns) { return x.dim() == 2 && x.size(0) == rows && x.size(1) == columns; }

void check_product(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) {
  CAIRN_CHECK(x.dim() == 2 && w.dim() == 2 && x.size(1) == w.size(1) && is_matrix(y, x.size(0), w.size(0)),
              "a linear layer of weight {} from {} to {}", c10::str(w.sizes()), c10::str(x.sizes()), c10::str(y.sizes()));
}

void check_gated(const at::Tensor& gate_up, const at::Tensor& y) {
  CAIRN_CHECK(gate_up.dim() == 2 && gate_up.size(1) % 2 == 0 && is_matrix(y, gate_up.size(0), gate_up.size(1) / 2), "SwiGLU from {} to {}",
              c10::str(gate_up.sizes()), c10::str(y.sizes()));
}

void check_turned(const at::Tensor& y, const Turned& turned) {
  const int64_t width = 2 * turned.table.cos.size(1);
  CAIRN_CHECK(turned.length > 0 && y.size(0) % turned.length == 0 && y.size(1) % width == 0 && turned.heads * width <= y.size(1) &&
                  turned.position >= 0 && turned.position + turned.length <= turned.table.cos.size(0),
              "{} heads of {} in {}, positions {} to {} of {}", turned.heads, width, c10::str(y.sizes()), turned.position,
              turned.position + turned.length, turned.table.cos.size(0));
}

void turn(const at::Tensor& y, const Turned& turned) {
  const int64_t head_dim = 2 * turned.table.cos.size(1);
  rope(y.view({-1, turned.length, y.size(1) / head_dim, head_dim}).narrow(2, 0, turned.heads), turned.table, turned.position);
}

}  // namespace

void linear_swiglu(const at::Tensor& gate_up, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) {
  check_product(gate_up, x, w);
  check_gated(gate_up, y);
  if (linear_swiglu_on_cuda(gate_up, y, x, w)) return;
  linear(gate_up, x, w);
  swiglu(y, gate_up);
}

void linear_swiglu(const at::Tensor& gate_up, const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, at::Tensor* largest) {
  check_product(gate_up, x.rows, w.rows);
  check_gated(gate_up, y);
  if (linear_swiglu_on_cuda(gate_up, y, x, w, largest)) return;
  linear(gate_up, x, w);
  swiglu(y, gate_up, largest);
}

void linear_input_swiglu(const at::Tensor& dgate_up, const at::Tensor& y, const at::Tensor& dout, const at::Tensor& w,
                         const at::Tensor& gate_up) {
  check_gated(gate_up, y);
  CAIRN_CHECK(dgate_up.sizes() == gate_up.sizes() && dout.dim() == 2 && dout.size(0) == y.size(0) && is_matrix(w, dout.size(1), y.size(1)),
              "a gradient of {} through a weight of {} to {}", c10::str(dout.sizes()), c10::str(w.sizes()), c10::str(dgate_up.sizes()));
  if (linear_input_swiglu_on_cuda(dgate_up, y, dout, w, gate_up)) return;
  linear_input(y, dout, w);  // for a moment it holds its own gradient
  swiglu_backward(dgate_up, y, gate_up, &y);
}

void linear_rope(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const Turned& turned) {
  check_product(y, x, w);
  check_turned(y, turned);
  if (linear_rope_on_cuda(y, x, w, turned)) return;
  linear(y, x, w);
  turn(y, turned);
}

void linear_rope(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const Turned& turned) {
  check_product(y, x.rows, w.rows);
  check_turned(y, turned);
  if (linear_rope_on_cuda(y, x, w, turned)) return;
  linear(y, x, w);
  turn(y, turned);
}

}  // namespace cairn::kernels
