// AdamW on a GPU: one thread per element, one pass over the four arrays.
#include "kernels/adamw_kernel.h"

namespace cairn::kernels {
namespace {

constexpr int kThreads = 256;         // enough warps to hide memory latency, small enough for any GPU
constexpr int kBlocksMax = 132 * 16;  // about 16 blocks on each of an H200's 132 multiprocessors; the loop takes the rest

__global__ void adamw_kernel(AdamwLaunch a) {
  const float scale = a.gradient_scale * (a.gradient_factor != nullptr ? *a.gradient_factor : 1.0f);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const float g = a.g[i] * scale;
    const float m = a.beta1 * a.m[i] + (1 - a.beta1) * g;
    const float v = a.beta2 * a.v[i] + (1 - a.beta2) * g * g;
    a.m[i] = m;
    a.v[i] = v;
    a.p[i] = a.p[i] * a.decay - a.step_size * m / (sqrtf(v) * a.inverse_root2 + a.eps);
  }
}

}  // namespace

cudaError_t launch_adamw(const AdamwLaunch& launch, cudaStream_t stream) {
  if (launch.count == 0) return cudaSuccess;
  const int64_t wanted = (launch.count + kThreads - 1) / kThreads;
  const int blocks = static_cast<int>(wanted < kBlocksMax ? wanted : kBlocksMax);
  adamw_kernel<<<blocks, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
