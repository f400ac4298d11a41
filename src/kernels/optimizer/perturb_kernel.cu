// Random directions on a GPU, bitwise identical to the CPU's.
#include "kernels/cuda/normal.h"
#include "kernels/optimizer/perturb_kernel.h"

namespace cairn::kernels {
namespace {

using namespace device;

// Four signs, without the coefficient. A word has 32 signs, so one Philox counter has 32 such fours.
__device__ Four signs(const DirectionLaunch& of, uint64_t counter) {
  const uint32_t word = base::random_words(of.key, of.stream, counter / 32).word[counter / 8 % 4] >> (counter % 8 * 4);
  Four z;
#pragma unroll
  for (int i = 0; i < 4; ++i) z.at[i] = (word >> i & 1) != 0 ? 1.0f : -1.0f;
  return z;
}

__device__ Four exact_of(const DirectionLaunch& of, uint64_t counter, bool rademacher) {
  return rademacher ? signs(of, counter) : normals(base::random_words(of.key, of.stream, counter));
}

__device__ Bounds bounds_of(const DirectionLaunch& of, uint64_t counter, bool rademacher) {
  if (!rademacher) return bounds_of_normals(base::random_words(of.key, of.stream, counter));
  const Four z = signs(of, counter);
  return {z, z};
}

// to = moved(from, z), with z from exact(counter); quick(counter) gives bounds of z.
template <class T, class Quick, class Exact, class Moved>
__device__ void over_weights(const WeightsLaunch& a, const Quick& quick, const Exact& exact, const Moved& moved) {
  const Fours<const T> from(static_cast<const T*>(a.from), a.first, a.count);
  const Fours<T> to(static_cast<T*>(a.to), a.first, a.count);
  over_counters(a.first, a.count, [&](uint64_t counter, int64_t begin) {
    const Pack<T, 4> weights = from.load(begin);
    const auto of_all = [&](const Four& z) {
      return Pack<T, 4>::of(
          {moved(weights[0], z.at[0]), moved(weights[1], z.at[1]), moved(weights[2], z.at[2]), moved(weights[3], z.at[3])});
    };
    to.store(begin, rounded_exactly<T>([&] { return quick(counter); }, [&] { return exact(counter); }, of_all));
  });
}

template <class T>
__global__ void __launch_bounds__(kCounterThreads) perturb_kernel(WeightsLaunch a, DirectionLaunch direction) {
  over_weights<T>(
      a, [&](uint64_t counter) { return bounds_of(direction, counter, a.rademacher); },
      [&](uint64_t counter) { return exact_of(direction, counter, a.rademacher); },
      [&](float weight, float z) { return weight + direction.coefficient * z; });
}

template <class T>
__global__ void __launch_bounds__(kCounterThreads) replay_kernel(WeightsLaunch a, ReplayLaunch b) {
  const auto quick = [&](uint64_t counter) {
    Bounds sums = {};
    for (int64_t d = 0; d < b.count; ++d) {
      const float coefficient = b.directions[d].coefficient;
      const Bounds z = bounds_of(b.directions[d], counter, a.rademacher);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float one = coefficient * z.one.at[i], other = coefficient * z.other.at[i];
        sums.one.at[i] += fminf(one, other), sums.other.at[i] += fmaxf(one, other);  // sums are between sums of smaller and of larger ones
      }
    }
    return sums;
  };
  const auto exact = [&](uint64_t counter) {
    Four sum = {};
    for (int64_t d = 0; d < b.count; ++d) {
      const Four z = exact_of(b.directions[d], counter, a.rademacher);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.at[i] += b.directions[d].coefficient * z.at[i];
    }
    return sum;
  };
  over_weights<T>(a, quick, exact, [&](float weight, float sum) { return weight * b.keep - b.rate * sum; });
}

}  // namespace

cudaError_t launch_perturb(const WeightsLaunch& weights, const DirectionLaunch& direction, cudaStream_t stream) {
  if (weights.count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for_counters(weights.count);
  weights.elements == Elements::bf16 ? perturb_kernel<bf16><<<blocks, kCounterThreads, 0, stream>>>(weights, direction)
                                     : perturb_kernel<float><<<blocks, kCounterThreads, 0, stream>>>(weights, direction);
  return cudaGetLastError();
}

cudaError_t launch_replay(const WeightsLaunch& weights, const ReplayLaunch& replay, cudaStream_t stream) {
  if (weights.count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for_counters(weights.count);
  weights.elements == Elements::bf16 ? replay_kernel<bf16><<<blocks, kCounterThreads, 0, stream>>>(weights, replay)
                                     : replay_kernel<float><<<blocks, kCounterThreads, 0, stream>>>(weights, replay);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
