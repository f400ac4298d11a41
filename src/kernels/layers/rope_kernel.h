// The arguments of the rotary embedding kernel.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

struct RopeLaunch {
  Elements elements;
  void* x;
  const void* from;        // x itself, or another of the same shape
  const float *cos, *sin;  // of the first row's position, [length, half]
  int64_t batch, length, heads, half;
  int64_t batch_stride, row_stride, head_stride;  // in elements
  int64_t from_batch_stride, from_row_stride, from_head_stride;
  bool inverse;
};
cudaError_t launch_rope(const RopeLaunch& launch, cudaStream_t stream);

// Heads from several tensors, each of [batch, length, heads, 2 * half], one after the other into one.
struct RopeBackwardLaunch {
  static constexpr int kSources = 3;
  struct Source {
    const void* from;
    int64_t heads, batch_stride, row_stride, head_stride;  // in elements
    bool rotated;                                          // false: copied
  };
  Elements elements;
  void* x;  // rows of all heads side by side
  Source sources[kSources];
  const float *cos, *sin;  // as above
  int64_t batch, length, half;
  int64_t row_stride;
};
cudaError_t launch_rope_backward(const RopeBackwardLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
