// Tensor-core products on tiles in shared memory, by mma.m16n8k16 and ldmatrix. For .cu files.
//
// A tile has rows of kDim 16-bit elements; the 16 bytes at chunk c of row r are stored at chunk c ^ (r % 8), so neither rows nor columns of
// chunks have bank conflicts. In a warp's accumulator of 16 x 8, lane l holds columns 2 (l % 4) and one more of rows l / 4 and l / 4 + 8.
#pragma once
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cairn::kernels::block {

__device__ inline uint32_t shared_address(const void* in_shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared)); }

// The address of chunk `chunk` (8 elements) of row `row`.
template <int kDim>
__device__ inline uint32_t chunk_at(uint32_t tile, int row, int chunk) {
  return tile + static_cast<uint32_t>((row * (kDim / 8) + (chunk ^ (row & 7))) * 16);
}

// Copies 16 bytes; zeros where not `valid`.
__device__ inline void copy_async(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Starts copying rows [first, first + kRows) of one head into a tile; rows from `limit` on become 0.
template <int kRows, int kDim, int kThreads, class T>
__device__ inline void load_tile(uint32_t tile, const T* head, int64_t row_stride, int first, int limit) {
  constexpr int kChunks = kDim / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = first + row < limit;
    copy_async(chunk_at<kDim>(tile, row, chunk), head + (valid ? first + row : 0) * row_stride + chunk * 8, valid);
  }
}

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// The left operand: 16 rows from `row`, 16 columns from chunk `chunk`.
template <int kDim>
__device__ inline void load_left(uint32_t (&a)[4], uint32_t tile, int row, int chunk) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices(a, chunk_at<kDim>(tile, row + lane % 16, chunk + lane / 16));
}
// The right operand of a product with the tile's transpose: columns are 16 of the tile's rows from `row`, depth its 16 columns from
// `chunk`. b[0], b[1]: the first eight columns; b[2], b[3]: the next.
template <int kDim>
__device__ inline void load_right_transposed(uint32_t (&b)[4], uint32_t tile, int row, int chunk) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices(b, chunk_at<kDim>(tile, row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}
// The right operand of a product with the tile itself: depth is 16 of its rows from `row`, columns 16 of its columns from `chunk`.
template <int kDim>
__device__ inline void load_right(uint32_t (&b)[4], uint32_t tile, int row, int chunk) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices_transposed(b, chunk_at<kDim>(tile, row + lane % 16, chunk + lane / 16));
}

template <class T>
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class T>
__device__ inline uint32_t pack_two(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
}

// Accumulators of 16 x 16, rounded, as a left operand.
template <class T>
__device__ inline void as_left(uint32_t (&a)[4], const float (&first)[4], const float (&second)[4]) {
  a[0] = pack_two<T>(first[0], first[1]), a[1] = pack_two<T>(first[2], first[3]);
  a[2] = pack_two<T>(second[0], second[1]), a[3] = pack_two<T>(second[2], second[3]);
}

// c [16][kColumns] += left (16 rows of `left` from `row`) times the transpose of `right` (kColumns rows).
template <class T, int kDim, int kColumns>
__device__ inline void multiply_transposed(float (&c)[kColumns / 8][4], uint32_t left, int row, uint32_t right) {
#pragma unroll
  for (int chunk = 0; chunk < kDim / 8; chunk += 2) {
    uint32_t a[4];
    load_left<kDim>(a, left, row, chunk);
#pragma unroll
    for (int column = 0; column < kColumns; column += 16) {
      uint32_t b[4];
      load_right_transposed<kDim>(b, right, column, chunk);
      multiply_add<T>(c[column / 8], a, b[0], b[1]);
      multiply_add<T>(c[column / 8 + 1], a, b[2], b[3]);
    }
  }
}

// c [16][kDim] += a [16][kDepth] times `right` (kDepth rows of kDim). a are accumulators of 16 x kDepth.
template <class T, int kDim, int kDepth>
__device__ inline void multiply(float (&c)[kDim / 8][4], const float (&a)[kDepth / 8][4], uint32_t right) {
#pragma unroll
  for (int depth = 0; depth < kDepth; depth += 16) {
    uint32_t left[4];
    as_left<T>(left, a[depth / 8], a[depth / 8 + 1]);
#pragma unroll
    for (int chunk = 0; chunk < kDim / 8; chunk += 2) {
      uint32_t b[4];
      load_right<kDim>(b, right, depth, chunk);
      multiply_add<T>(c[chunk], left, b[0], b[1]);
      multiply_add<T>(c[chunk + 1], left, b[2], b[3]);
    }
  }
}

template <int kTiles>
__device__ inline void set_zero(float (&c)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = 0;
}

}  // namespace cairn::kernels::block
