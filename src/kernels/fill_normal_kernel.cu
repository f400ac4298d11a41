// Normal values on a GPU, the bits of base::Random::normal: compiled without contraction (box_muller.h).
#include <cuda_bf16.h>

#include "base/box_muller.h"
#include "kernels/fill_normal_kernel.h"

namespace cairn::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksMax = 132 * 16;

__device__ void put(float* to, float value) { *to = value; }
__device__ void put(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }

// A thread has the four numbers of one counter, of which the first and the last few may lie outside.
template <class T>
__global__ void __launch_bounds__(kThreads) fill_normal_kernel(FillNormalLaunch a) {
  const int64_t first_block = a.first_index / 4, blocks = (a.first_index + a.count + 3) / 4 - first_block;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < blocks;
       at += static_cast<int64_t>(gridDim.x) * kThreads) {
    const auto block = static_cast<uint64_t>(first_block + at);
    const base::Words4 words = base::philox({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                              static_cast<uint32_t>(a.stream), static_cast<uint32_t>(a.stream >> 32)}},
                                            static_cast<uint32_t>(a.key), static_cast<uint32_t>(a.key >> 32));
    const base::NormalPair one = base::box_muller(words.word[0], words.word[1]), two = base::box_muller(words.word[2], words.word[3]);
    const float values[4] = {one.first, one.second, two.first, two.second};
    const int64_t begin = static_cast<int64_t>(block) * 4 - a.first_index;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (begin + i >= 0 && begin + i < a.count) put(static_cast<T*>(a.to) + begin + i, values[i] * a.deviation);
  }
}

}  // namespace

cudaError_t launch_fill_normal(const FillNormalLaunch& launch, cudaStream_t stream) {
  if (launch.count == 0) return cudaSuccess;
  const int64_t wanted = (launch.count / 4 + 2 + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kBlocksMax ? wanted : kBlocksMax);
  launch.elements == Elements::bf16 ? fill_normal_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(launch)
                                    : fill_normal_kernel<float><<<blocks, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
