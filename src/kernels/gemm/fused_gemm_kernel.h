// What the host wrapper hands to the products that go on working on their results (fused_gemm_kernel.cu).
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

// x w^T, or x w where w lies [in, out]. All matrices are bf16; rows lie a multiple of 16 bytes apart and begin at one.
struct GemmLaunch {
  const void *x, *w;
  int64_t x_stride, w_stride;  // in elements
  int64_t rows, in, out;
  bool fan_in_fan_out = false;                           // w lies [in, out]
  const float *x_factor = nullptr, *w_factor = nullptr;  // x and w are codes in eight bits (e4m3) of these; not fan_in_fan_out
};

// Into how many tiles results are cut.
int64_t gemm_tiles_down(int64_t rows);
int64_t gemm_tiles_across(int64_t out);

// gate_up [rows, out], and of its halves y [rows, out / 2] = silu(gate) * up.
struct GemmSwigluLaunch {
  GemmLaunch gemm;
  void *gate_up, *y;
  unsigned* amax = nullptr;  // magnitude of y (cuda/pack.h)
};
cudaError_t launch_gemm_swiglu(const GemmSwigluLaunch& launch, cudaStream_t stream);

// With dy = the product [rows, out]: dgate_up [rows, 2 out] from gate_up, whose place it may take, and y once more.
struct GemmSwigluBackwardLaunch {
  GemmLaunch gemm;
  const void* gate_up;
  void *dgate_up, *y;
};
cudaError_t launch_gemm_swiglu_backward(const GemmSwigluBackwardLaunch& launch, cudaStream_t stream);
cudaError_t launch_pingpong_swiglu_backward(const GemmSwigluBackwardLaunch& launch, cudaStream_t stream);  // where sums are short

// y [rows, out]. Heads in its first `turned` columns are turned by the angles of their row: every `length` rows are positions 0, 1, ... of
// cos and sin [length, head_dim / 2].
struct GemmRopeLaunch {
  GemmLaunch gemm;
  void* y;
  const float *cos, *sin;
  int64_t length, head_dim, rotated;  // head_dim is 64 or 128
};
cudaError_t launch_gemm_rope(const GemmRopeLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
