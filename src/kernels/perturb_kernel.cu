// Directions on a GPU, the bits of the CPU: compiled without contraction (box_muller.h).
#include <cuda_bf16.h>

#include "base/box_muller.h"
#include "kernels/perturb_kernel.h"

namespace cairn::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksMax = 132 * 16;

__device__ float value(float x) { return x; }
__device__ float value(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void put(float* to, float x) { *to = x; }
__device__ void put(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

struct Four {
  float at[4];
};

// Elements 4 * block to 4 * block + 3 of a direction, without its coefficient.
__device__ Four four_of(const DirectionLaunch& of, uint64_t block, bool rademacher) {
  const uint64_t counter = rademacher ? block / 32 : block;  // a word has 32 signs
  const base::Words4 words = base::philox({{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                                            static_cast<uint32_t>(of.stream), static_cast<uint32_t>(of.stream >> 32)}},
                                          static_cast<uint32_t>(of.key), static_cast<uint32_t>(of.key >> 32));
  Four z;
  if (rademacher) {
    const uint32_t word = words.word[block / 8 % 4] >> (block % 8 * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) z.at[i] = (word >> i & 1) != 0 ? 1.0f : -1.0f;
  } else {
    const base::NormalPair one = base::box_muller(words.word[0], words.word[1]), two = base::box_muller(words.word[2], words.word[3]);
    z = {{one.first, one.second, two.first, two.second}};
  }
  return z;
}

// Calls make(block) for the weights of each counter, and use(weight, number) for those that lie inside.
template <class T, class Make, class Use>
__device__ void over_weights(const WeightsLaunch& a, const Make& make, const Use& use) {
  const int64_t first_block = a.first / 4, blocks = (a.first + a.count + 3) / 4 - first_block;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < blocks;
       at += static_cast<int64_t>(gridDim.x) * kThreads) {
    const auto block = static_cast<uint64_t>(first_block + at);
    const Four made = make(block);
    const int64_t begin = static_cast<int64_t>(block) * 4 - a.first;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (begin + i >= 0 && begin + i < a.count)
        put(static_cast<T*>(a.to) + begin + i, use(value(static_cast<const T*>(a.from)[begin + i]), made.at[i]));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) perturb_kernel(WeightsLaunch a, DirectionLaunch direction) {
  over_weights<T>(
      a, [&](uint64_t block) { return four_of(direction, block, a.rademacher); },
      [&](float weight, float z) { return weight + direction.coefficient * z; });
}

template <class T>
__global__ void __launch_bounds__(kThreads) replay_kernel(WeightsLaunch a, ReplayLaunch b) {
  const auto sum = [&](uint64_t block) {
    Four sum = {};
    for (int64_t d = 0; d < b.count; ++d) {
      const Four z = four_of(b.directions[d], block, a.rademacher);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.at[i] += b.directions[d].coefficient * z.at[i];
    }
    return sum;
  };
  over_weights<T>(a, sum, [&](float weight, float moved) { return weight * b.keep - b.rate * moved; });
}

unsigned blocks_for(const WeightsLaunch& a) {
  const int64_t wanted = (a.count / 4 + 2 + kThreads - 1) / kThreads;
  return static_cast<unsigned>(wanted < kBlocksMax ? wanted : kBlocksMax);
}

}  // namespace

cudaError_t launch_perturb(const WeightsLaunch& weights, const DirectionLaunch& direction, cudaStream_t stream) {
  if (weights.count == 0) return cudaSuccess;
  weights.elements == Elements::bf16 ? perturb_kernel<__nv_bfloat16><<<blocks_for(weights), kThreads, 0, stream>>>(weights, direction)
                                     : perturb_kernel<float><<<blocks_for(weights), kThreads, 0, stream>>>(weights, direction);
  return cudaGetLastError();
}

cudaError_t launch_replay(const WeightsLaunch& weights, const ReplayLaunch& replay, cudaStream_t stream) {
  if (weights.count == 0) return cudaSuccess;
  weights.elements == Elements::bf16 ? replay_kernel<__nv_bfloat16><<<blocks_for(weights), kThreads, 0, stream>>>(weights, replay)
                                     : replay_kernel<float><<<blocks_for(weights), kThreads, 0, stream>>>(weights, replay);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
