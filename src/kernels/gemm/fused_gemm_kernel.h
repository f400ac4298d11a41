// The arguments of the GEMMs with fused epilogues (fused_gemm_kernel.cu).
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

// x w^T, or x w where w is stored [in, out]. All matrices are bf16; addresses and row strides are multiples of 16 bytes.
struct GemmLaunch {
  const void *x, *w;
  int64_t x_stride, w_stride;  // in elements
  int64_t rows, in, out;
  bool fan_in_fan_out = false;                           // w is stored [in, out]
  const float *x_factor = nullptr, *w_factor = nullptr;  // set where x and w are fp8 codes (e4m3); then w is [out, in]
};

// The number of tiles of a result.
int64_t gemm_tiles_down(int64_t rows);
int64_t gemm_tiles_across(int64_t out);

// gate_up [rows, out] = the product, and y [rows, out / 2] = silu(gate) * up of its halves.
struct GemmSwigluLaunch {
  GemmLaunch gemm;
  void *gate_up, *y;
  unsigned* amax = nullptr;  // of y (cuda/pack.h)
};
cudaError_t launch_gemm_swiglu(const GemmSwigluLaunch& launch, cudaStream_t stream);

// With dy = the product [rows, out]: dgate_up [rows, 2 out] from gate_up (it may be the same memory), and the recomputed y.
struct GemmSwigluBackwardLaunch {
  GemmLaunch gemm;
  const void* gate_up;
  void *dgate_up, *y;
};
cudaError_t launch_gemm_swiglu_backward(const GemmSwigluBackwardLaunch& launch, cudaStream_t stream);
cudaError_t launch_pingpong_swiglu_backward(const GemmSwigluBackwardLaunch& launch, cudaStream_t stream);  // for short sums (small K)

// y [rows, out] = the product; heads in its first `rotated` columns are rotated. Every `length` rows are positions 0, 1, ... of cos and sin
// [length, head_dim / 2].
struct GemmRopeLaunch {
  GemmLaunch gemm;
  void* y;
  const float *cos, *sin;
  int64_t length, head_dim, rotated;  // head_dim is 64 or 128
};
cudaError_t launch_gemm_rope(const GemmRopeLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
