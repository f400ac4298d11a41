// The GEMMs of a linear layer on the CPU, by the BLAS inside libtorch. Called directly, it takes outputs, strides and transpositions as
// they are; at::mm copies or picks a slower path (64-67 against 73-74 GFLOP/s on two Neoverse-N1 cores).
#include "kernels/gemm.h"

#include <dlfcn.h>
#include <limits>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/tensor.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/low_precision.h"

namespace cairn::kernels {
namespace {

// Fortran's sgemm: column-major c [m, n] = alpha a b + beta c, 32-bit sizes, everything by address.
using Sgemm = void(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k, const float* alpha,
                   const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c, const int* ldc);

// From MKL inside libtorch_cpu on x86-64, from OpenBLAS beside it on AArch64; null where libtorch exports none.
Sgemm* find_sgemm() {
  static Sgemm* const found = reinterpret_cast<Sgemm*>(dlsym(RTLD_DEFAULT, "sgemm_"));
  return found;
}

bool fits(const at::Tensor& x) {
  constexpr int64_t limit = std::numeric_limits<int>::max();
  return is_cpu_float(x) && x.dim() == 2 && x.size(0) > 0 && x.size(1) > 0 && (x.size(1) == 1 || x.stride(1) == 1) &&
         (x.size(0) == 1 || x.stride(0) >= x.size(1)) && x.size(0) < limit && x.size(1) < limit && x.stride(0) < limit;
}

int leading(const at::Tensor& x) { return static_cast<int>(x.size(0) == 1 ? x.size(1) : x.stride(0)); }

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
  if (sgemm == nullptr || !fits(y) || !fits(x) || !fits(w)) return reference::linear(y, x, w, onto);
  if (onto && !y.is_same(*onto)) y.copy_(*onto);
  const int rows = static_cast<int>(x.size(0)), in = static_cast<int>(x.size(1)), out = static_cast<int>(w.size(0));
  const int ldw = leading(w), ldx = leading(x), ldy = leading(y);
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
  if (sgemm == nullptr || !fits(dx) || !fits(dy) || !fits(w)) return reference::linear_backward_input(dx, dy, w, accumulate);
  const int rows = static_cast<int>(dx.size(0)), in = static_cast<int>(dx.size(1)), out = static_cast<int>(w.size(0));
  const int ldw = leading(w), ldx = leading(dx), ldy = leading(dy);
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
  if (sgemm == nullptr || !fits(dw) || !fits(dy) || !fits(x)) return reference::linear_backward_weight(dw, dy, x, accumulate);
  const int rows = static_cast<int>(x.size(0)), in = static_cast<int>(x.size(1)), out = static_cast<int>(dw.size(0));
  const int ldw = leading(dw), ldx = leading(x), ldy = leading(dy);
  const float one = 1, keep = accumulate ? 1 : 0;
  sgemm("N", "T", &in, &out, &rows, &one, x.const_data_ptr<float>(), &ldx, dy.const_data_ptr<float>(), &ldy, &keep,
        dw.mutable_data_ptr<float>(), &ldw);
}

}  // namespace cairn::kernels
