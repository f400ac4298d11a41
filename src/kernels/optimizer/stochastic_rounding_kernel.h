// The arguments of the stochastic rounding kernel.
#pragma once
#include <cstdint>

#include <cuda_runtime_api.h>

namespace cairn::kernels {

struct RoundingLaunch {
  uint16_t* to;
  const float* from;
  int64_t count, first_index;
  uint64_t key, stream;  // of base::Random
};

cudaError_t launch_rounding(const RoundingLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
