// AdamW on a GPU: one pass over the four arrays, whatever each of them is kept in, with fp32 in between.
#include <type_traits>

#include "kernels/adamw_kernel.h"
#include "kernels/device_pack.h"
#include "kernels/stochastic_rounding_bits.h"

namespace cairn::kernels {
namespace {

using device::bf16;
using device::Pack;

constexpr int kThreads = 256;         // enough warps to hide memory latency, small enough for any GPU
constexpr int kBlocksMax = 132 * 16;  // about 16 blocks on each of an H200's 132 multiprocessors; the loop takes the rest
constexpr int kEach = 4;              // neighbours of a thread: one call of the random numbers gives as many

// Neighbours first .. first+N-1 of what stochastic_rounding.h makes of them; first is a multiple of N, and N is 1 or 4.
template <int N>
__device__ Pack<bf16, N> rounded_randomly(const AdamwLaunch& a, const float (&values)[N], int64_t first) {
  const auto index = static_cast<uint64_t>(first), block = index / 4;
  const base::Words4 words = base::philox({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                            static_cast<uint32_t>(a.stream), static_cast<uint32_t>(a.stream >> 32)}},
                                          static_cast<uint32_t>(a.key), static_cast<uint32_t>(a.key >> 32));
  Pack<bf16, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint32_t word = N == 4 ? words.word[i] : words.word[index % 4];
    result.at[i] = __ushort_as_bfloat16(round_bits(__float_as_uint(values[i]), word));
  }
  return result;
}

template <class P, class G, class M, int N>
__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamwLaunch a) {
  const float scale = a.gradient_scale * (a.gradient_factor != nullptr ? *a.gradient_factor : 1.0f);
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N; first < a.count;
       first += static_cast<int64_t>(gridDim.x) * kThreads * N) {
    const auto p = Pack<P, N>::load(static_cast<const P*>(a.p) + first);
    const auto g = Pack<G, N>::load(static_cast<const G*>(a.g) + first);
    const auto m = Pack<M, N>::load(static_cast<const M*>(a.m) + first), v = Pack<M, N>::load(static_cast<const M*>(a.v) + first);
    float next_p[N], next_m[N], next_v[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float gradient = g[i] * scale;
      next_m[i] = a.beta1 * m[i] + (1 - a.beta1) * gradient;
      next_v[i] = a.beta2 * v[i] + (1 - a.beta2) * gradient * gradient;
      next_p[i] = p[i] * a.decay - a.step_size * next_m[i] / (sqrtf(next_v[i]) * a.inverse_root2 + a.eps);
    }
    Pack<M, N>::of(next_m).store(static_cast<M*>(a.m) + first);
    Pack<M, N>::of(next_v).store(static_cast<M*>(a.v) + first);
    if constexpr (std::is_same_v<P, bf16>) {
      (a.rounds_randomly ? rounded_randomly(a, next_p, first) : Pack<P, N>::of(next_p)).store(static_cast<P*>(a.p) + first);
    } else {
      Pack<P, N>::of(next_p).store(static_cast<P*>(a.p) + first);
    }
  }
}

template <class T>
bool takes_packs(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % (kEach * sizeof(T)) == 0;
}

template <class P, class G, class M>
void start(const AdamwLaunch& a, cudaStream_t stream) {
  const bool whole = a.count % kEach == 0 && takes_packs<P>(a.p) && takes_packs<G>(a.g) && takes_packs<M>(a.m) && takes_packs<M>(a.v);
  const int64_t threads = whole ? a.count / kEach : a.count, wanted = (threads + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kBlocksMax ? wanted : kBlocksMax);
  if (whole)
    adamw_kernel<P, G, M, kEach><<<blocks, kThreads, 0, stream>>>(a);
  else
    adamw_kernel<P, G, M, 1><<<blocks, kThreads, 0, stream>>>(a);
}

template <class Run>
void with_type(Elements elements, const Run& run) {
  elements == Elements::bf16 ? run(bf16()) : run(float());
}

}  // namespace

cudaError_t launch_adamw(const AdamwLaunch& launch, cudaStream_t stream) {
  if (launch.count == 0) return cudaSuccess;
  with_type(launch.parameters, [&](auto p) {
    with_type(launch.gradients,
              [&](auto g) { with_type(launch.moments, [&](auto m) { start<decltype(p), decltype(g), decltype(m)>(launch, stream); }); });
  });
  return cudaGetLastError();
}

}  // namespace cairn::kernels
