// What the host wrapper of AdamW hands to its CUDA kernel: pointers, a size, a stream.
#pragma once
#include "kernels/cuda_launch.h"

namespace cairn::kernels {

struct AdamwLaunch {
  Elements parameters, gradients, moments;
  void *p, *m, *v;
  const void* g;
  const float* gradient_factor;  // one float on the device, or null
  int64_t count;
  float gradient_scale, beta1, beta2, eps;
  float decay;           // p is multiplied by this first
  float step_size;       // learning_rate / (1 - beta1^step)
  float inverse_root2;   // 1 / sqrt(1 - beta2^step)
  bool rounds_randomly;  // p in bf16, by the numbers of:
  uint64_t key, stream;  // of base::Random
};

cudaError_t launch_adamw(const AdamwLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
