// What the host wrapper hands to the products that go on working on their results (fused_product_kernel.cu).
#pragma once
#include "kernels/cuda_launch.h"

namespace cairn::kernels {

// x w^T, or x w where w lies [in, out]. All matrices are bf16; rows lie a multiple of 16 bytes apart and begin at one.
struct ProductLaunch {
  const void *x, *w;
  int64_t x_stride, w_stride;  // in elements
  int64_t rows, in, out;
  bool by_input = false;                                 // w lies [in, out]
  const float *x_factor = nullptr, *w_factor = nullptr;  // x and w are codes in eight bits (e4m3) of these; not by_input
};

// Into how many tiles results are cut.
int64_t product_tiles_down(int64_t rows);
int64_t product_tiles_across(int64_t out);

// gate_up [rows, out], and of its halves y [rows, out / 2] = silu(gate) * up.
struct ProductSwigluLaunch {
  ProductLaunch product;
  void *gate_up, *y;
  unsigned* largest = nullptr;  // magnitude of y (device_pack.h)
};
cudaError_t launch_product_swiglu(const ProductSwigluLaunch& launch, cudaStream_t stream);

// With dy = the product [rows, out]: dgate_up [rows, 2 out] from gate_up, whose place it may take, and y once more.
struct ProductSwigluBackwardLaunch {
  ProductLaunch product;
  const void* gate_up;
  void *dgate_up, *y;
};
cudaError_t launch_product_swiglu_backward(const ProductSwigluBackwardLaunch& launch, cudaStream_t stream);
cudaError_t launch_alternating_swiglu_backward(const ProductSwigluBackwardLaunch& launch, cudaStream_t stream);  // where sums are short

// y [rows, out]. Heads in its first `turned` columns are turned by the angles of their row: every `length` rows are positions 0, 1, ... of
// cos and sin [length, head_dim / 2].
struct ProductRopeLaunch {
  ProductLaunch product;
  void* y;
  const float *cos, *sin;
  int64_t length, head_dim, turned;  // head_dim is 64 or 128
};
cudaError_t launch_product_rope(const ProductRopeLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
