#include "kernels/fused_gemm.h"

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "kernels/gemm/fused_gemm_cuda.h"
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

void check_rotated(const at::Tensor& y, const RotatedHeads& rotated) {
  const int64_t width = 2 * rotated.table.cos.size(1);
  CAIRN_CHECK(rotated.length > 0 && y.size(0) % rotated.length == 0 && y.size(1) % width == 0 && rotated.heads * width <= y.size(1) &&
                  rotated.position >= 0 && rotated.position + rotated.length <= rotated.table.cos.size(0),
              "{} heads of {} in {}, positions {} to {} of {}", rotated.heads, width, c10::str(y.sizes()), rotated.position,
              rotated.position + rotated.length, rotated.table.cos.size(0));
}

void rotate(const at::Tensor& y, const RotatedHeads& rotated) {
  const int64_t head_dim = 2 * rotated.table.cos.size(1);
  rope(y.view({-1, rotated.length, y.size(1) / head_dim, head_dim}).narrow(2, 0, rotated.heads), rotated.table, rotated.position);
}

}  // namespace

void linear_swiglu(const at::Tensor& gate_up, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) {
  check_product(gate_up, x, w);
  check_gated(gate_up, y);
  if (linear_swiglu_on_cuda(gate_up, y, x, w)) return;
  linear(gate_up, x, w);
  swiglu(y, gate_up);
}

void linear_swiglu(const at::Tensor& gate_up, const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, at::Tensor* amax) {
  check_product(gate_up, x.rows, w.rows);
  check_gated(gate_up, y);
  if (linear_swiglu_on_cuda(gate_up, y, x, w, amax)) return;
  linear(gate_up, x, w);
  swiglu(y, gate_up, amax);
}

void linear_swiglu_backward(const at::Tensor& dgate_up, const at::Tensor& y, const at::Tensor& dout, const at::Tensor& w,
                            const at::Tensor& gate_up) {
  check_gated(gate_up, y);
  CAIRN_CHECK(dgate_up.sizes() == gate_up.sizes() && dout.dim() == 2 && dout.size(0) == y.size(0) && is_matrix(w, dout.size(1), y.size(1)),
              "a gradient of {} through a weight of {} to {}", c10::str(dout.sizes()), c10::str(w.sizes()), c10::str(dgate_up.sizes()));
  if (linear_swiglu_backward_on_cuda(dgate_up, y, dout, w, gate_up)) return;
  linear_backward_input(y, dout, w);  // for a moment it holds its own gradient
  swiglu_backward(dgate_up, y, gate_up, &y);
}

void linear_rope(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RotatedHeads& rotated) {
  check_product(y, x, w);
  check_rotated(y, rotated);
  if (linear_rope_on_cuda(y, x, w, rotated)) return;
  linear(y, x, w);
  rotate(y, rotated);
}

void linear_rope(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const RotatedHeads& rotated) {
  check_product(y, x.rows, w.rows);
  check_rotated(y, rotated);
  if (linear_rope_on_cuda(y, x, w, rotated)) return;
  linear(y, x, w);
  rotate(y, rotated);
}

}  // namespace cairn::kernels
