// fp8 on the CPU: as exact as on a GPU and slower than bf16. For tests and for trying a recipe out.
#include "base/check.h"
#include "kernels/cross_entropy.h"
#include "kernels/gemm/fp8_cuda.h"

namespace cairn::kernels {
namespace {

void product(const at::Tensor& y, const at::Tensor& x, const at::Tensor& x_factor, const at::Tensor& w, const at::Tensor& w_factor,
             const at::Tensor* onto) {
  CAIRN_CHECK(x.defined() && w.defined(), "an fp8 operand lacks the form (rows or columns) that this product reads");
  CAIRN_CHECK(x.size(1) == w.size(1) && y.size(0) == x.size(0) && y.size(1) == w.size(0), "an fp8 product of {} by {} to {}",
              c10::str(x.sizes()), c10::str(w.sizes()), c10::str(y.sizes()));
  // Forward products tolerate fast accumulation; gradients do not.
  const bool fast = x.scalar_type() == at::kFloat8_e4m3fn && w.scalar_type() == at::kFloat8_e4m3fn;
  if (fp8_gemm_on_cuda(y, x, x_factor, w, w_factor, onto, fast)) return;
  reference::fp8_gemm(y, x, x_factor, w, w_factor, onto);
}

}  // namespace

Fp8Matrix to_fp8(const at::Tensor& x, Fp8 code, const Fp8Forms& forms, const at::Tensor& amax) {
  CAIRN_CHECK(x.dim() == 2 && fits_fp8(x.size(1)), "a matrix of {} cannot be quantized to fp8: its width must be a multiple of 16",
              c10::str(x.sizes()));
  Fp8Matrix made;
  if (to_fp8_on_cuda(made, x, code, forms, amax)) return made;
  return reference::to_fp8(x, code, forms);
}

Fp8Matrix cross_entropy_to_fp8(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                               const at::Tensor& amax) {
  CAIRN_CHECK(logits.dim() == 2 && fits_fp8(logits.size(1)),
              "logits of {} cannot be quantized to fp8: the vocabulary must be a multiple of 16", c10::str(logits.sizes()));
  CAIRN_CHECK(lse.numel() == logits.size(0) && targets.numel() == logits.size(0) && (scale.numel() == 1 || scale.numel() == logits.size(0)),
              "{} sums, {} targets and {} scales for {} rows", lse.numel(), targets.numel(), scale.numel(), logits.size(0));
  Fp8Matrix made;
  if (cross_entropy_to_fp8_on_cuda(made, logits, lse, targets, scale, amax)) return made;
  cross_entropy_backward(logits, lse, targets, scale);
  return to_fp8(logits, Fp8::e5m2, {}, amax);
}

void linear(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const at::Tensor* onto) {
  product(y, x.rows, x.factor, w.rows, w.factor, onto);
}

void linear_backward_input(const at::Tensor& dx, const Fp8Matrix& dy, const Fp8Matrix& w, bool accumulate) {
  product(dx, dy.rows, dy.factor, w.columns, w.factor, accumulate ? &dx : nullptr);
}

void linear_backward_weight(const at::Tensor& dw, const Fp8Matrix& dy, const Fp8Matrix& x, bool accumulate) {
  product(dw, dy.columns, dy.factor, x.columns, x.factor, accumulate ? &dw : nullptr);
}

}  // namespace cairn::kernels
