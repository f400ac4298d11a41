// AdamW on a GPU: one pass over the four arrays of each piece, in any mix of fp32 and bf16, computed in fp32. One launch takes many pieces;
// each block finds its piece in the table of the launch.
#include <type_traits>

#include "kernels/cuda/pack.h"
#include "kernels/optimizer/adamw_kernel.h"
#include "kernels/optimizer/stochastic_rounding_bits.h"

namespace cairn::kernels {
namespace {

using device::bf16;
using device::Pack;

constexpr int kThreads = 256;  // enough warps to hide memory latency, small enough for any GPU
constexpr int kEach = 4;       // neighbours of a thread: one call of the random numbers gives as many

// Stochastic rounding (stochastic_rounding.h) of elements first .. first+N-1; first is a multiple of N, and N is 1 or 4.
template <int N>
__device__ Pack<bf16, N> rounded_stochastically(const AdamwScalars& a, const float (&values)[N], int64_t first) {
  const auto index = static_cast<uint64_t>(first), block = index / 4;
  const base::Words4 words = base::random_words(a.key, a.stream, block);
  Pack<bf16, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint32_t word = N == 4 ? words.word[i] : words.word[index % 4];
    result.at[i] = __ushort_as_bfloat16(round_bits(__float_as_uint(values[i]), word));
  }
  return result;
}

// Updates the elements of a piece that belong to its block number `block`.
template <class P, class G, class M, int N>
__device__ void update(const AdamwLaunch& a, const AdamwPieceLaunch& piece, const AdamwScalars& scalars, int64_t block, float scale) {
  const int64_t begin = block * kAdamwBlockElements,
                end = begin + kAdamwBlockElements < piece.count ? begin + kAdamwBlockElements : piece.count;
  for (int64_t first = begin + static_cast<int64_t>(threadIdx.x) * N; first < end; first += kThreads * N) {
    const auto p = Pack<P, N>::load(static_cast<const P*>(piece.p) + first);
    const auto g = Pack<G, N>::load(static_cast<const G*>(piece.g) + first);
    const auto m = Pack<M, N>::load(static_cast<const M*>(piece.m) + first), v = Pack<M, N>::load(static_cast<const M*>(piece.v) + first);
    float next_p[N], next_m[N], next_v[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float gradient = g[i] * scale;
      next_m[i] = a.beta1 * m[i] + (1 - a.beta1) * gradient;
      next_v[i] = a.beta2 * v[i] + (1 - a.beta2) * gradient * gradient;
      next_p[i] = p[i] * scalars.decay - scalars.step_size * next_m[i] / (sqrtf(next_v[i]) * scalars.inverse_root2 + a.eps);
    }
    Pack<M, N>::of(next_m).store(static_cast<M*>(piece.m) + first);
    Pack<M, N>::of(next_v).store(static_cast<M*>(piece.v) + first);
    if constexpr (std::is_same_v<P, bf16>) {
      (piece.stochastic_rounding ? rounded_stochastically(scalars, next_p, piece.first_index + first) : Pack<P, N>::of(next_p))
          .store(static_cast<P*>(piece.p) + first);
    } else {
      Pack<P, N>::of(next_p).store(static_cast<P*>(piece.p) + first);
    }
  }
}

template <class P, class G, class M>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ AdamwLaunch a) {
  int low = 0, high = a.pieces;  // the last piece that begins no later than this block
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (a.piece[middle].first_block <= blockIdx.x ? low : high) = middle;
  }
  const AdamwPieceLaunch& piece = a.piece[low];
  const float scale = a.gradient_scale * (a.gradient_factor != nullptr ? *a.gradient_factor : 1.0f);
  const AdamwScalars scalars = a.scalars != nullptr ? a.scalars[low] : piece.scalars;
  const int64_t block = blockIdx.x - piece.first_block;
  if (piece.is_vectorized)
    update<P, G, M, kEach>(a, piece, scalars, block, scale);
  else
    update<P, G, M, 1>(a, piece, scalars, block, scale);
}

template <class T>
bool is_aligned_for_packs(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % (kEach * sizeof(T)) == 0;
}

template <class P, class G, class M>
void start(AdamwLaunch& a, cudaStream_t stream) {
  unsigned blocks = 0;
  for (int i = 0; i < a.pieces; ++i) {
    AdamwPieceLaunch& one = a.piece[i];
    one.is_vectorized = one.count % kEach == 0 && one.first_index % kEach == 0 && is_aligned_for_packs<P>(one.p) &&
                        is_aligned_for_packs<G>(one.g) && is_aligned_for_packs<M>(one.m) && is_aligned_for_packs<M>(one.v);
    one.first_block = blocks;
    blocks += static_cast<unsigned>((one.count + kAdamwBlockElements - 1) / kAdamwBlockElements);
  }
  if (blocks > 0) adamw_kernel<P, G, M><<<blocks, kThreads, 0, stream>>>(a);
}

template <class Run>
void with_type(Elements elements, const Run& run) {
  elements == Elements::bf16 ? run(bf16()) : run(float());
}

}  // namespace

cudaError_t launch_adamw(AdamwLaunch& launch, cudaStream_t stream) {
  with_type(launch.parameters, [&](auto p) {
    with_type(launch.gradients,
              [&](auto g) { with_type(launch.moments, [&](auto m) { start<decltype(p), decltype(g), decltype(m)>(launch, stream); }); });
  });
  return cudaGetLastError();
}

}  // namespace cairn::kernels
