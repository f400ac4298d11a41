// The GEMMs of a linear layer on the CPU, by the BLAS inside libtorch. Called directly, it takes outputs, strides and transpositions as
// they are; at::mm copies or picks a slower path (64-67 against 73-74 GFLOP/s on two Neoverse-N1 cores).
#include "kernels/gemm.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/sgemm.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/low_precision.h"

namespace cairn::kernels {
namespace {

void check(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) {
  CAIRN_CHECK(y.dim() == 2 && x.dim() == 2 && w.dim() == 2 && y.size(0) == x.size(0) && x.size(1) == w.size(1) && y.size(1) == w.size(0),
              "a linear layer of weight {} from {} to {}", c10::str(w.sizes()), c10::str(x.sizes()), c10::str(y.sizes()));
}

bool find_native_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;  // every processor with AMX has it too
#elif defined(__aarch64__)
  constexpr unsigned long kBf16 = 1UL << 14;  // of the second word of capabilities
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
#else
  return false;
#endif
}

// Whether this processor multiplies bf16 matrices in hardware (AVX-512 BF16 or AMX on x86-64, BF16 on AArch64). Elsewhere libtorch emulates
// it in one thread, and widening to fp32 for BLAS is many times as fast.
bool has_native_bf16() {
  static const bool found = find_native_bf16();
  return found;
}

// Half precision that this processor does not multiply in hardware.
bool emulated(const at::Tensor& x) {
  return x.is_cpu() && is_half_precision(x) && !(x.scalar_type() == at::kBFloat16 && has_native_bf16());
}

}  // namespace

void linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor* onto) {
  check(y, x, w);
  CAIRN_CHECK(!onto || onto->sizes() == y.sizes(), "a sum onto {} that is {}", onto ? c10::str(onto->sizes()) : "", c10::str(y.sizes()));
  if (linear_on_cuda(y, x, w, onto)) return;
  if (emulated(x)) {
    const at::Tensor wide = onto ? onto->to(at::kFloat) : empty_widened(y);
    linear(wide, widened(x), widened(w), onto ? &wide : nullptr);
    y.copy_(wide);
    return;
  }
  Sgemm* sgemm = find_sgemm();
  if (sgemm == nullptr || !fits_sgemm(y) || !fits_sgemm(x) || !fits_sgemm(w)) return reference::linear(y, x, w, onto);
  if (onto && !y.is_same(*onto)) y.copy_(*onto);
  const int rows = static_cast<int>(x.size(0)), in = static_cast<int>(x.size(1)), out = static_cast<int>(w.size(0));
  const int ldw = leading_of(w), ldx = leading_of(x), ldy = leading_of(y);
  const float one = 1, keep = onto ? 1 : 0;
  sgemm("T", "N", &out, &rows, &in, &one, w.const_data_ptr<float>(), &ldw, x.const_data_ptr<float>(), &ldx, &keep,
        y.mutable_data_ptr<float>(), &ldy);
}

void linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate) {
  check(dy, dx, w);
  if (linear_backward_input_on_cuda(dx, dy, w, accumulate)) return;
  if (emulated(dy)) {
    const at::Tensor wide = accumulate ? widened(dx) : empty_widened(dx);
    linear_backward_input(wide, widened(dy), widened(w), accumulate);
    dx.copy_(wide);
    return;
  }
  Sgemm* sgemm = find_sgemm();
  if (sgemm == nullptr || !fits_sgemm(dx) || !fits_sgemm(dy) || !fits_sgemm(w))
    return reference::linear_backward_input(dx, dy, w, accumulate);
  const int rows = static_cast<int>(dx.size(0)), in = static_cast<int>(dx.size(1)), out = static_cast<int>(w.size(0));
  const int ldw = leading_of(w), ldx = leading_of(dx), ldy = leading_of(dy);
  const float one = 1, keep = accumulate ? 1 : 0;
  sgemm("N", "N", &in, &rows, &out, &one, w.const_data_ptr<float>(), &ldw, dy.const_data_ptr<float>(), &ldy, &keep,
        dx.mutable_data_ptr<float>(), &ldx);
}

void linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  check(dy, x, dw);
  if (linear_backward_weight_on_cuda(dw, dy, x, accumulate)) return;
  if (emulated(x)) {
    const at::Tensor wide = accumulate ? widened(dw) : empty_widened(dw);
    linear_backward_weight(wide, widened(dy), widened(x), accumulate);
    if (!wide.is_same(dw)) dw.copy_(wide);
    return;
  }
  Sgemm* sgemm = find_sgemm();
  if (sgemm == nullptr || !fits_sgemm(dw) || !fits_sgemm(dy) || !fits_sgemm(x))
    return reference::linear_backward_weight(dw, dy, x, accumulate);
  const int rows = static_cast<int>(x.size(0)), in = static_cast<int>(x.size(1)), out = static_cast<int>(dw.size(0));
  const int ldw = leading_of(dw), ldx = leading_of(x), ldy = leading_of(dy);
  const float one = 1, keep = accumulate ? 1 : 0;
  sgemm("N", "T", &in, &out, &rows, &one, x.const_data_ptr<float>(), &ldx, dy.const_data_ptr<float>(), &ldy, &keep,
        dw.mutable_data_ptr<float>(), &ldw);
}

}  // namespace cairn::kernels
