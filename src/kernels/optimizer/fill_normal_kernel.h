// The arguments of the normal values kernel.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

struct FillNormalLaunch {
  Elements elements;
  void* to;
  int64_t count, first_index;
  uint64_t key, stream;  // of a base::Random
  float deviation;
};
cudaError_t launch_fill_normal(const FillNormalLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
