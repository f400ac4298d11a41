// fp8 quantization on a GPU, in two passes over a matrix: amax, then codes by rows and by columns. A thread has a square of 8 x 8 elements
// and transposes its codes in registers. Threads are arranged so that all reads and writes are whole sectors of 32 bytes.
#include <cuda_fp8.h>

#include "kernels/cuda/pack.h"
#include "kernels/gemm/fp8_kernel.h"

namespace cairn::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kSquare = 8;  // elements along one side of a thread's square: 16 bytes of a row
constexpr int kTile = 128;  // along one side of a block's
constexpr unsigned kMagnitudes = 0x7fff7fffU;

// Elementwise on two bf16: without signs they are ordered like unsigned integers.
__device__ unsigned larger(unsigned a, unsigned b) { return __vmaxu2(a, b & kMagnitudes); }

// The maximum over the block, in every thread.
__device__ unsigned block_amax(unsigned mine) {
  __shared__ unsigned parts[kThreads / 32];
  mine = __reduce_max_sync(0xffffffffU, mine);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  unsigned all = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) all = parts[warp] > all ? parts[warp] : all;
  return all;
}

// Block b takes every parts-th group of kThreads packs, numbered through all rows.
__global__ void __launch_bounds__(kThreads) amax_kernel(Fp8AmaxLaunch a) {
  const int64_t packs_of_row = a.columns / kSquare, packs = a.rows * packs_of_row, step = static_cast<int64_t>(a.parts) * kThreads;
  const auto* x = static_cast<const unsigned short*>(a.x);
  const bool whole = a.stride == a.columns;
  unsigned found = 0;
  constexpr int kTogether = 4;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; first < packs; first += kTogether * step) {
    uint4 pack[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t at = first + k * step;
      if (at >= packs) {
        pack[k] = {};
        continue;
      }
      const int64_t place = whole ? at * kSquare : at / packs_of_row * a.stride + at % packs_of_row * kSquare;
      pack[k] = *reinterpret_cast<const uint4*>(x + place);
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) found = larger(larger(larger(larger(found, pack[k].x), pack[k].y), pack[k].z), pack[k].w);
  }
  const unsigned low = found << 16, high = found & 0xffff0000U;  // each as the bits of a float
  const unsigned all = block_amax(low > high ? low : high);
  if (threadIdx.x == 0) a.amax[blockIdx.x] = all;
}

// The exponent of the least power of two that fits this amax.
__device__ int exponent_for(unsigned amax, bool e5m2) {
  if (amax == 0) return 0;
  int exponent = static_cast<int>(amax >> 23) - 127;
  if (exponent < -126) exponent = -126;
  if ((amax & 0x7fffffU) > 0x600000U) ++exponent;  // above 1.75 times a power of two
  exponent -= e5m2 ? 15 : 8;
  return exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
}

__device__ float power_of_two(int exponent) { return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23); }

// What is quantized: the values themselves, or, with kLogits, the gradient of the cross entropy of these logits, whose row data a block
// loads once.
template <bool kLogits>
struct Coded {
  __device__ void read(const Fp8Launch&, int64_t /*first_row*/, int64_t /*first_column*/) {}

  struct Row {
    float scale;  // from values to codes
    __device__ float of(float value, int /*place*/) const { return value * scale; }
  };
  __device__ Row row(int /*row*/, int /*column*/, float scale) const { return {scale}; }
};
template <>
struct Coded<true> {
  float sums[kTile], scales[kTile];  // by rows: log of the sum of exponentials in units of log 2, weight
  int targets[kTile];                // relative to the first column; -1: outside

  __device__ void read(const Fp8Launch& a, int64_t first_row, int64_t first_column) {
    const int mine = static_cast<int>(threadIdx.x);
    const int64_t row = first_row + mine;
    if (mine >= kTile) return;
    sums[mine] = __uint_as_float(0x7f800000U), scales[mine] = 0, targets[mine] = -1;  // infinity, of which every power is 0
    if (row >= a.rows || a.targets[row] == a.ignore) return;
    const int64_t from_first = a.targets[row] - first_column;
    sums[mine] = a.lse[row] * device::kLog2e, scales[mine] = a.scale[row * a.scale_stride];
    if (from_first >= 0 && from_first < kTile) targets[mine] = static_cast<int>(from_first);
  }

  struct Row {
    float log2_sum, scale;
    int target;
    __device__ float of(float logit, int place) const {
      if (scale == 0.0f) return 0.0f;  // an ignored row, whatever its logits
      const float probability = device::exp2_approx(fmaf(logit, device::kLog2e, -log2_sum));
      return (place == target ? probability - 1.0f : probability) * scale;
    }
  };
  __device__ Row row(int row, int column, float scale) const { return {sums[row], scales[row] * scale, targets[row] - column}; }
};

template <bool kE5m2, bool kLogits>
__device__ unsigned quantize_two(unsigned two_bf16, const typename Coded<kLogits>::Row& coded, int place) {
  const float2 values{coded.of(__uint_as_float(two_bf16 << 16), place), coded.of(__uint_as_float(two_bf16 & 0xffff0000U), place + 1)};
  return __nv_cvt_float2_to_fp8x2(values, __NV_SATFINITE, kE5m2 ? __NV_E5M2 : __NV_E4M3);
}

// Four rows of four bytes become four columns.
__device__ void transpose_codes(const unsigned (&rows)[4], unsigned (&columns)[4]) {
  const unsigned left_top = __byte_perm(rows[0], rows[1], 0x5140), left_bottom = __byte_perm(rows[2], rows[3], 0x5140);
  const unsigned right_top = __byte_perm(rows[0], rows[1], 0x7362), right_bottom = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(left_top, left_bottom, 0x5410), columns[1] = __byte_perm(left_top, left_bottom, 0x7632);
  columns[2] = __byte_perm(right_top, right_bottom, 0x5410), columns[3] = __byte_perm(right_top, right_bottom, 0x7632);
}

template <bool kE5m2, bool kLogits>
__global__ void __launch_bounds__(kThreads) quantize_kernel(Fp8Launch a) {
  // 4 x 8 threads of a warp, 4 x 2 warps of a block: columns x rows.
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kTile + warp / 4 * 64 + lane / 4 * kSquare;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kTile + warp % 4 * 32 + lane % 4 * kSquare;
  const bool mine = column < a.columns;
  uint4 from[kSquare];
  const auto* x = static_cast<const unsigned short*>(a.x) + row * a.stride + column;
#pragma unroll
  for (int i = 0; i < kSquare; ++i) {
    from[i] = {};
    if (mine && row + i < a.rows) from[i] = *reinterpret_cast<const uint4*>(x + i * a.stride);
  }
  __shared__ Coded<kLogits> coded;
  coded.read(a, static_cast<int64_t>(blockIdx.x) * kTile, static_cast<int64_t>(blockIdx.y) * kTile);  // a barrier follows
  unsigned amax = 0;
  for (int part = static_cast<int>(threadIdx.x); part < a.parts; part += kThreads) amax = max(amax, a.amax[part]);
  amax = block_amax(amax);
  const bool finite = amax < 0x7f800000U;
  const int exponent = exponent_for(amax, kE5m2);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *a.factor = finite ? power_of_two(exponent) : __uint_as_float(0x7fc00000U);
  if (!mine) return;
  const float scale = finite ? power_of_two(-exponent) : 1.0f;
  unsigned left[kSquare], right[kSquare];  // codes of columns 0 to 3 and 4 to 7
#pragma unroll
  for (int i = 0; i < kSquare; ++i) {
    const auto of_row = coded.row(static_cast<int>(row % kTile) + i, static_cast<int>(column % kTile), scale);
    const auto two = [&](unsigned values, int place) { return quantize_two<kE5m2, kLogits>(values, of_row, place); };
    left[i] = two(from[i].x, 0) | two(from[i].y, 2) << 16;
    right[i] = two(from[i].z, 4) | two(from[i].w, 6) << 16;
  }
  if (a.by_rows != nullptr) {
    auto* to = static_cast<unsigned char*>(a.by_rows) + row * a.columns + column;
#pragma unroll
    for (int i = 0; i < kSquare; ++i)
      if (row + i < a.rows) *reinterpret_cast<uint2*>(to + i * a.columns) = {left[i], right[i]};
  }
  if (a.by_columns == nullptr || row >= a.filled) return;
  auto* to = static_cast<unsigned char*>(a.by_columns) + column * a.filled + row;
  const auto put = [&](const unsigned(&codes)[kSquare], int first) {
    const unsigned top[4] = {codes[0], codes[1], codes[2], codes[3]}, bottom[4] = {codes[4], codes[5], codes[6], codes[7]};
    unsigned upper[4], lower[4];
    transpose_codes(top, upper);
    transpose_codes(bottom, lower);
#pragma unroll
    for (int i = 0; i < 4; ++i) *reinterpret_cast<uint2*>(to + (first + i) * a.filled) = {upper[i], lower[i]};
  };
  put(left, 0);
  put(right, 4);
}

}  // namespace

int fp8_parts(int64_t rows, int64_t columns) {
  const int64_t wanted = (rows * columns / kSquare + kThreads * 4 - 1) / (kThreads * 4);
  return static_cast<int>(wanted < 1 ? 1 : wanted < kFp8Parts ? wanted : kFp8Parts);
}

cudaError_t launch_fp8_amax(const Fp8AmaxLaunch& launch, cudaStream_t stream) {
  amax_kernel<<<static_cast<unsigned>(launch.parts), kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

cudaError_t launch_fp8(const Fp8Launch& launch, cudaStream_t stream) {
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  const dim3 grid(tiles(launch.filled > 0 ? launch.filled : 1), tiles(launch.columns));
  const auto kernel = launch.lse != nullptr ? quantize_kernel<true, true>
                      : launch.e5m2         ? quantize_kernel<true, false>
                                            : quantize_kernel<false, false>;
  kernel<<<grid, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
