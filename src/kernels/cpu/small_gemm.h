// Matrix products of operands that are in the cache already, too small to pay for packing.
#pragma once
#include "kernels/cpu/simd.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels::simd {

// A tile of R rows and V vectors of c, kept in registers.
template <int W, int R, int V>
CAIRN_INLINE void gemm_tile(int64_t inner, float* c, int64_t c_row, const float* a, int64_t a_row, int64_t a_inner, const float* b,
                            int64_t b_row) {
  Float<W> sums[R][V] = {};
  for (int64_t k = 0; k < inner; ++k, a += a_inner, b += b_row) {
    Float<W> right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) right[v] = load<W>(b + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float left = a[r * a_row];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store<W>(c + r * c_row + v * W, load<W>(c + r * c_row + v * W) + sums[r][v]);
}

template <int W, int V>
CAIRN_INLINE void gemm_columns(int64_t rows, int64_t inner, float* c, int64_t c_row, const float* a, int64_t a_row, int64_t a_inner,
                               const float* b, int64_t b_row) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) gemm_tile<W, 4, V>(inner, c + i * c_row, c_row, a + i * a_row, a_row, a_inner, b, b_row);
  for (; i < rows; ++i) gemm_tile<W, 1, V>(inner, c + i * c_row, c_row, a + i * a_row, a_row, a_inner, b, b_row);
}

// c += a b with c [rows, columns], a [rows, inner], b [inner, columns]. Rows of c and b are contiguous; a has free strides, so it may be
// the transpose of a matrix.
template <int W>
CAIRN_INLINE void small_gemm(int64_t rows, int64_t columns, int64_t inner, float* c, int64_t c_row, const float* a, int64_t a_row,
                             int64_t a_inner, const float* b, int64_t b_row) {
  constexpr int kVectors = W == 8 ? 2 : 4;  // of a tile: 16 sums, 8 where there are 16 registers
  if (rows <= 0 || inner <= 0) return;
  int64_t j = 0;
  for (; j + kVectors * W <= columns; j += kVectors * W)
    gemm_columns<W, kVectors>(rows, inner, c + j, c_row, a, a_row, a_inner, b + j, b_row);
  for (; j + W <= columns; j += W) gemm_columns<W, 1>(rows, inner, c + j, c_row, a, a_row, a_inner, b + j, b_row);
  for (; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) {
      float sum = 0;
      for (int64_t k = 0; k < inner; ++k) sum += a[i * a_row + k * a_inner] * b[k * b_row + j];
      c[i * c_row + j] += sum;
    }
}

}  // namespace cairn::kernels::simd

#pragma GCC diagnostic pop
