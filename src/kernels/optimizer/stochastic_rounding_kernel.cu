// Stochastic rounding on a GPU, with the bits that base::Random::bits32 gives on the CPU.
#include "kernels/cuda/counters.h"
#include "kernels/optimizer/stochastic_rounding_bits.h"
#include "kernels/optimizer/stochastic_rounding_kernel.h"

namespace cairn::kernels {
namespace {

using namespace device;

__global__ void __launch_bounds__(kCounterThreads) rounding_kernel(RoundingLaunch a) {
  const Fours<const float> from(a.from, a.first_index, a.count);
  const Fours<uint16_t> to(a.to, a.first_index, a.count);
  over_counters(a.first_index, a.count, [&](uint64_t counter, int64_t begin) {
    const base::Words4 words = base::random_words(a.key, a.stream, counter);
    const auto exact = from.load(begin);
    Pack<uint16_t, 4> rounded;
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded.at[i] = round_bits(__float_as_uint(exact.at[i]), words.word[i]);
    to.store(begin, rounded);
  });
}

}  // namespace

cudaError_t launch_rounding(const RoundingLaunch& launch, cudaStream_t stream) {
  if (launch.count == 0) return cudaSuccess;
  rounding_kernel<<<blocks_for_counters(launch.count), kCounterThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
