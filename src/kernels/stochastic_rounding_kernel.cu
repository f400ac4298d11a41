// Stochastic rounding on a GPU: one thread per element, with the bits that base::Random::bits32 gives on the CPU.
#include "kernels/stochastic_rounding_bits.h"
#include "kernels/stochastic_rounding_kernel.h"

namespace cairn::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksMax = 132 * 16;  // as for AdamW

__global__ void rounding_kernel(RoundingLaunch a) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const auto index = static_cast<uint64_t>(a.first_index + i), block = index / 4;
    const base::Words4 words = base::philox({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                              static_cast<uint32_t>(a.stream), static_cast<uint32_t>(a.stream >> 32)}},
                                            static_cast<uint32_t>(a.key), static_cast<uint32_t>(a.key >> 32));
    a.to[i] = round_bits(__float_as_uint(a.from[i]), words.word[index % 4]);
  }
}

}  // namespace

cudaError_t launch_rounding(const RoundingLaunch& launch, cudaStream_t stream) {
  if (launch.count == 0) return cudaSuccess;
  const int64_t wanted = (launch.count + kThreads - 1) / kThreads;
  rounding_kernel<<<static_cast<int>(wanted < kBlocksMax ? wanted : kBlocksMax), kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
