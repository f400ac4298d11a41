// The matrix product of the BLAS inside libtorch: MKL in libtorch_cpu on x86-64, OpenBLAS beside it on AArch64. Inside a parallel region
// it runs in the calling thread.
#pragma once
#include <cstdint>
#include <limits>

#include <dlfcn.h>

#include <ATen/core/Tensor.h>

#include "kernels/cpu/tensor.h"

namespace cairn::kernels {

// Fortran's sgemm: column-major c [m, n] = alpha a b + beta c, 32-bit sizes, everything by address.
using Sgemm = void(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k, const float* alpha,
                   const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c, const int* ldc);

// Null where libtorch exports none.
inline Sgemm* find_sgemm() {
  static Sgemm* const found = reinterpret_cast<Sgemm*>(dlsym(RTLD_DEFAULT, "sgemm_"));
  return found;
}

// Whether sgemm takes this matrix as it lies.
inline bool fits_sgemm(const at::Tensor& x) {
  constexpr int64_t limit = std::numeric_limits<int>::max();
  return is_cpu_float(x) && x.dim() == 2 && x.size(0) > 0 && x.size(1) > 0 && (x.size(1) == 1 || x.stride(1) == 1) &&
         (x.size(0) == 1 || x.stride(0) >= x.size(1)) && x.size(0) < limit && x.size(1) < limit && x.stride(0) < limit;
}

inline int leading_of(const at::Tensor& x) { return static_cast<int>(x.size(0) == 1 ? x.size(1) : x.stride(0)); }

}  // namespace cairn::kernels
