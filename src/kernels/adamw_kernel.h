// What the host wrapper of AdamW hands to its CUDA kernel: pointers, a size, a stream.
#pragma once
#include <cstdint>

#include <cuda_runtime_api.h>

namespace cairn::kernels {

struct AdamwLaunch {
  float *p, *m, *v;
  const float* g;
  const float* gradient_factor;  // one float on the device, or null
  int64_t count;
  float gradient_scale, beta1, beta2, eps;
  float decay;          // p is multiplied by this first
  float step_size;      // learning_rate / (1 - beta1^step)
  float inverse_root2;  // 1 / sqrt(1 - beta2^step)
};

cudaError_t launch_adamw(const AdamwLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
