// The arguments of the SwiGLU kernels.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

struct SwigluLaunch {
  Elements elements;
  void* y;
  const void* gate_up;
  int64_t rows, ff;
  unsigned* amax;  // of y (cuda/pack.h); null: not wanted
};
cudaError_t launch_swiglu(const SwigluLaunch& launch, cudaStream_t stream);

struct SwigluBackwardLaunch {
  Elements elements;
  void *dgate_up, *y;  // y may be null
  const void *dy, *gate_up;
  int64_t rows, ff;
  unsigned* amax;  // of dgate_up
};
cudaError_t launch_swiglu_backward(const SwigluBackwardLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
