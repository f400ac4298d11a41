// Softmax cross entropy on a GPU. A block has a row and keeps as much of it as fits in shared memory between its sum and its gradient, so
// memory is read once and written once. The sum is an online softmax. Exponentials are powers of 2: scores count in units of log 2.
#include <type_traits>

#include "kernels/cuda/pack.h"
#include "kernels/layers/cross_entropy_kernel.h"

namespace cairn::kernels {
namespace {

using device::bf16;
using device::exp2_approx;
using device::kLog2e;
using device::kPack;
using device::Pack;

constexpr int kWarp = 32;
constexpr int kTogether = 4;                          // packs that a thread reads before it computes
constexpr int kFew = 128, kSome = 512, kMany = 1024;  // threads of a block: for short rows, for two rows on a multiprocessor, for one
constexpr int64_t kFewPacks = 512;                    // rows of up to so many packs are short
constexpr int64_t kHalfBytes = 110 * 1024;            // of shared memory: two blocks of this fit into a multiprocessor of a Hopper GPU
constexpr int64_t kOtherBytes = 1024;                 // of shared memory, for what the kernel itself declares
constexpr float kLn2 = 0.6931471805599453f;

__device__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// The online sum of exp over some logits, as a multiple of exp(high).
struct Sum {
  float high = minus_infinity();  // the largest so far
  float base = 0;                 // high in units of log 2, 0 while there is none
  float times = 0;

  __device__ void raise(float most) {
    if (!(most > high)) return;
    const float next = most * kLog2e;
    if (high != minus_infinity()) times *= exp2_approx(base - next);
    high = most, base = next;
  }
  __device__ void add(float logit) { times += exp2_approx(fmaf(logit, kLog2e, -base)); }

  __device__ void merge(float other_high, float other_times) {
    const float most = fmaxf(high, other_high), next = most == minus_infinity() ? 0.0f : most * kLog2e;
    const float mine = high == most || high == minus_infinity() ? times : times * exp2_approx(base - next);
    const float theirs = other_high == most ? other_times : other_times * exp2_approx(other_high * kLog2e - next);
    high = most, base = next, times = mine + theirs;
  }
  __device__ void merge_warp() {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const float other_high = __shfl_xor_sync(0xffffffff, high, step), other_times = __shfl_xor_sync(0xffffffff, times, step);
      merge(other_high, other_times);
    }
  }
  // The log of the sum over the block, in units of log 2 and in a fixed order; the same in every thread.
  template <int kThreads>
  __device__ float log2_of_block() {
    __shared__ float highs[kThreads / kWarp], parts[kThreads / kWarp], result;
    merge_warp();
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    if (lane == 0) highs[warp] = high, parts[warp] = times;
    __syncthreads();
    if (warp == 0) {
      Sum all;
      if (lane < kThreads / kWarp) all.merge(highs[lane], parts[lane]);
      all.merge_warp();
      if (lane == 0) result = all.base + log2f(all.times);
    }
    __syncthreads();
    return result;
  }
};

// A row: elements before the first aligned pack, packs, elements after the last.
template <class T>
struct Row {
  T* x;
  int64_t head, packs, tail, vocab;

  __device__ Row(void* logits, int64_t row, int64_t width) : x(static_cast<T*>(logits) + row * width), vocab(width) {
    const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x) % device::kPackBytes / sizeof(T));
    head = beyond == 0 ? 0 : kPack<T> - beyond;
    if (head > vocab) head = vocab;
    packs = (vocab - head) / kPack<T>;
    tail = head + packs * kPack<T>;
  }
  __device__ T* pack(int64_t index) const { return x + head + index * kPack<T>; }
  // Calls use(element) for this thread's elements outside the packs. There are fewer of these than threads.
  template <class Use>
  __device__ void each_loose(const Use& use) const {
    const auto thread = static_cast<int64_t>(threadIdx.x);
    if (thread < head) use(x + thread);
    if (tail + thread < vocab) use(x + tail + thread);
  }
};

// The logit of a row's target: 0 where it is on another rank or ignored, NaN where the target is out of range, so that it shows.
template <class T>
__device__ float chosen_logit(const Row<T>& row, int64_t target, const CrossEntropyLaunch& a) {
  if (target == a.elsewhere || target == a.ignore) return 0;
  return target >= 0 && target < row.vocab ? static_cast<float>(row.x[target]) : __uint_as_float(0x7fc00000u);
}

template <class T>
struct Gradient {
  float log2_sum, scale;  // scale 0 and `zero` for a row that is ignored
  bool zero;

  __device__ float of(float logit) const { return zero ? 0.0f : exp2_approx(fmaf(logit, kLog2e, -log2_sum)) * scale; }
  __device__ void write(T* to, const Pack<T, kPack<T>>& logits) const {
    float values[kPack<T>];
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) values[i] = of(logits[i]);
    Pack<T, kPack<T>>::of(values).store(to);
  }
  // After the whole row is written: subtracts the one-hot term.
  __device__ void write_target(const Row<T>& row, int64_t target, float chosen) const {
    __syncthreads();
    if (threadIdx.x != 0 || zero || target < 0 || target >= row.vocab) return;
    const float value[1] = {of(chosen) - scale};
    Pack<T, 1>::of(value).store(row.x + target);
  }
};

// Loss and log-sum-exp, and with kGradient the gradient in place of the logits. The first kept_packs packs of a row stay in shared memory;
// each is used by the thread that read it.
template <class T, int kThreads, bool kGradient>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropyLaunch a, int64_t kept_packs) {
  extern __shared__ uint4 room[];
  using P = Pack<T, kPack<T>>;
  P* kept = reinterpret_cast<P*>(room);
  const int64_t index = blockIdx.x, target = a.targets[index];
  const Row<T> row(a.logits, index, a.vocab);
  const float chosen = chosen_logit(row, target, a);  // before anything is overwritten: barriers lie between

  Sum sum;
  row.each_loose([&](const T* at) {
    const float logit = static_cast<float>(*at);
    sum.raise(logit);
    sum.add(logit);
  });
  for (int64_t first = threadIdx.x; first < row.packs; first += kTogether * kThreads) {
    P logits[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (first + k * kThreads < row.packs) logits[k] = P::load(row.pack(first + k * kThreads));
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (first + k * kThreads >= row.packs) continue;
      if (kGradient && first + k * kThreads < kept_packs) kept[first + k * kThreads] = logits[k];
      float most = logits[k][0];
#pragma unroll
      for (int i = 1; i < kPack<T>; ++i) most = fmaxf(most, logits[k][i]);
      sum.raise(most);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) sum.add(logits[k][i]);
    }
  }
  const float log2_sum = sum.log2_of_block<kThreads>(), lse = log2_sum * kLn2;
  const bool ignored = target == a.ignore;
  if (threadIdx.x == 0) {
    a.lse[index] = lse;
    a.loss[index] = ignored ? 0.0f : lse - chosen;
  }
  if constexpr (kGradient) {
    const Gradient<T> gradient{log2_sum, a.scale[index * a.scale_stride], ignored};
    row.each_loose([&](T* at) {
      const float value[1] = {gradient.of(static_cast<float>(*at))};
      Pack<T, 1>::of(value).store(at);
    });
#pragma unroll 4
    for (int64_t p = threadIdx.x; p < row.packs; p += kThreads)
      gradient.write(row.pack(p), p < kept_packs ? kept[p] : P::load(row.pack(p)));
    gradient.write_target(row, target, chosen);
  }
}

// The gradient, from a known log-sum-exp.
template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads) cross_entropy_backward_kernel(CrossEntropyLaunch a) {
  using P = Pack<T, kPack<T>>;
  const int64_t index = blockIdx.x, target = a.targets[index];
  const Row<T> row(a.logits, index, a.vocab);
  const float chosen = chosen_logit(row, target, a);
  __syncthreads();  // before anything is overwritten
  const Gradient<T> gradient{a.lse[index] * kLog2e, a.scale[index * a.scale_stride], target == a.ignore};
  row.each_loose([&](T* at) {
    const float value[1] = {gradient.of(static_cast<float>(*at))};
    Pack<T, 1>::of(value).store(at);
  });
  for (int64_t first = threadIdx.x; first < row.packs; first += kTogether * kThreads) {
    P logits[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (first + k * kThreads < row.packs) logits[k] = P::load(row.pack(first + k * kThreads));
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (first + k * kThreads < row.packs) gradient.write(row.pack(first + k * kThreads), logits[k]);
  }
  gradient.write_target(row, target, chosen);
}

// Shared memory that a block may ask for on this device.
cudaError_t shared_bytes(int64_t& bytes) {
  int device = 0, limit = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  bytes = limit - kOtherBytes;
  return status;
}

template <class T, int kThreads, bool kGradient>
cudaError_t start(const CrossEntropyLaunch& a, cudaStream_t stream) {
  constexpr auto kernel = cross_entropy_kernel<T, kThreads, kGradient>;
  int64_t bytes = 0;
  if constexpr (kGradient) {
    int64_t most = 0;
    if (const cudaError_t status = shared_bytes(most); status != cudaSuccess) return status;
    const int64_t needed = a.vocab / kPack<T> * device::kPackBytes;
    bytes = needed < most ? needed : most / device::kPackBytes * device::kPackBytes;
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (status != cudaSuccess) return status;
  }
  kernel<<<static_cast<unsigned>(a.rows), kThreads, static_cast<size_t>(bytes), stream>>>(a, bytes / device::kPackBytes);
  return cudaGetLastError();
}

template <class T, int kThreads>
cudaError_t start_backward(const CrossEntropyLaunch& a, cudaStream_t stream) {
  cross_entropy_backward_kernel<T, kThreads><<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

// Where nothing is kept, several blocks share a multiprocessor.
template <class Threads>
constexpr int kSharing = Threads::value < kMany ? Threads::value : kSome;

// Calls run with the number of threads that suits a row.
template <class T, class Run>
cudaError_t with_threads(const CrossEntropyLaunch& a, const Run& run) {
  const int64_t packs = a.vocab / kPack<T>;
  if (packs <= kFewPacks) return run(std::integral_constant<int, kFew>());
  if (packs * device::kPackBytes <= kHalfBytes) return run(std::integral_constant<int, kSome>());
  return run(std::integral_constant<int, kMany>());
}

template <class Run>
cudaError_t with_type(const CrossEntropyLaunch& a, const Run& run) {
  if (a.rows == 0) return cudaSuccess;
  return a.elements == Elements::bf16 ? run(bf16()) : run(float());
}

}  // namespace

cudaError_t launch_cross_entropy(const CrossEntropyLaunch& launch, cudaStream_t stream) {
  return with_type(launch, [&](auto type) {
    using T = decltype(type);
    return with_threads<T>(launch, [&](auto threads) { return start<T, kSharing<decltype(threads)>, false>(launch, stream); });
  });
}

cudaError_t launch_cross_entropy_and_gradient(const CrossEntropyLaunch& launch, cudaStream_t stream) {
  return with_type(launch, [&](auto type) {
    using T = decltype(type);
    return with_threads<T>(launch, [&](auto threads) { return start<T, threads.value, true>(launch, stream); });
  });
}

cudaError_t launch_cross_entropy_backward(const CrossEntropyLaunch& launch, cudaStream_t stream) {
  return with_type(launch, [&](auto type) {
    using T = decltype(type);
    return with_threads<T>(launch, [&](auto threads) { return start_backward<T, kSharing<decltype(threads)>>(launch, stream); });
  });
}

}  // namespace cairn::kernels
