// Rotary position embedding on a GPU, in place or from one tensor to another: a thread keeps the angles of its columns and rotates one head
// after the other.
#include "kernels/cuda/pack.h"
#include "kernels/layers/rope_kernel.h"

namespace cairn::kernels {
namespace {

using device::bf16;
using device::is_aligned;
using device::kPack;
using device::Pack;

constexpr int kThreads = 256;
constexpr int kTokensMax = 64;  // of a block: CUDA's limit of its third dimension

// The angles of N adjacent columns of the first half of a head and their partners in the second half.
template <int N>
struct Angles {
  float cos[N], sin[N];

  __device__ Angles(const float* cos_at, const float* sin_at, bool inverse) {
    constexpr int kTogether = N < kPack<float> ? N : kPack<float>;
#pragma unroll
    for (int i = 0; i < N; i += kTogether) {
      const auto c = Pack<float, kTogether>::load(cos_at + i), s = Pack<float, kTogether>::load(sin_at + i);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) cos[i + j] = c[j], sin[i + j] = inverse ? -s[j] : s[j];
    }
  }

  template <class T>
  __device__ void rotate(const Pack<T, N>& u, const Pack<T, N>& v, T* first, T* second) const {
    float rotated[N], rotated_second[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      rotated[i] = u[i] * cos[i] - v[i] * sin[i];
      rotated_second[i] = v[i] * cos[i] + u[i] * sin[i];
    }
    Pack<T, N>::of(rotated).store(first);
    Pack<T, N>::of(rotated_second).store(second);
  }
};

// Threads: x over packs of half a head, y over heads, z over tokens.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeLaunch a) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
  if (token >= a.batch * a.length) return;
  const int64_t batch = token / a.length, at = token - batch * a.length;
  T* row = static_cast<T*>(a.x) + batch * a.batch_stride + at * a.row_stride;
  const T* from = static_cast<const T*>(a.from) + batch * a.from_batch_stride + at * a.from_row_stride;
  for (int64_t d = static_cast<int64_t>(threadIdx.x) * N; d < a.half; d += static_cast<int64_t>(blockDim.x) * N) {
    const Angles<N> angles(a.cos + at * a.half + d, a.sin + at * a.half + d, a.inverse);
    for (int64_t head = threadIdx.y; head < a.heads; head += blockDim.y) {
      T *first = row + head * a.head_stride + d, *second = first + a.half;
      const T* pair = from + head * a.from_head_stride + d;
      const auto u = Pack<T, N>::load(pair), v = Pack<T, N>::load(pair + a.half);
      angles.rotate(u, v, first, second);
    }
  }
}

// The same threads; each goes through the heads of all sources.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rope_backward_kernel(RopeBackwardLaunch a) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
  if (token >= a.batch * a.length) return;
  const int64_t batch = token / a.length, at = token - batch * a.length;
  for (int64_t d = static_cast<int64_t>(threadIdx.x) * N; d < a.half; d += static_cast<int64_t>(blockDim.x) * N) {
    const Angles<N> angles(a.cos + at * a.half + d, a.sin + at * a.half + d, /*inverse=*/true);
    T* row = static_cast<T*>(a.x) + token * a.row_stride + d;
#pragma unroll
    for (int source = 0; source < RopeBackwardLaunch::kSources; ++source) {
      const RopeBackwardLaunch::Source& of = a.sources[source];
      const T* from = static_cast<const T*>(of.from) + batch * of.batch_stride + at * of.row_stride + d;
      for (int64_t head = threadIdx.y; head < of.heads; head += blockDim.y) {
        const auto u = Pack<T, N>::load(from + head * of.head_stride), v = Pack<T, N>::load(from + head * of.head_stride + a.half);
        T *first = row + head * 2 * a.half, *second = first + a.half;
        if (of.rotated) {
          angles.rotate(u, v, first, second);
        } else {
          u.store(first);
          v.store(second);
        }
      }
      row += of.heads * 2 * a.half;
    }
  }
}

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T, int N>
void start(const RopeLaunch& a, cudaStream_t stream) {
  const int64_t x = smaller(a.half / N, 32);
  // As many heads per round as give all rounds the same number.
  const int64_t heads_at_most = kThreads / x, turns = (a.heads + heads_at_most - 1) / heads_at_most, y = (a.heads + turns - 1) / turns;
  const int64_t z = smaller(kThreads / (x * y), kTokensMax), tokens = a.batch * a.length;
  const dim3 threads(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
  rope_kernel<T, N><<<static_cast<unsigned>((tokens + z - 1) / z), threads, 0, stream>>>(a);
}

template <class T>
void start_for(const RopeLaunch& a, cudaStream_t stream) {
  const auto whole = [](int64_t elements) { return elements % kPack<T> == 0; };
  // Strides of dims of one element may be anything.
  const bool aligned = is_aligned(a.x) && is_aligned(a.from) && is_aligned(a.cos) && is_aligned(a.sin) && whole(a.half) &&
                       (a.batch == 1 || (whole(a.batch_stride) && whole(a.from_batch_stride))) &&
                       (a.length == 1 || (whole(a.row_stride) && whole(a.from_row_stride))) &&
                       (a.heads == 1 || (whole(a.head_stride) && whole(a.from_head_stride)));
  aligned ? start<T, kPack<T>>(a, stream) : start<T, 1>(a, stream);
}

template <class T, int N>
void start(const RopeBackwardLaunch& a, cudaStream_t stream) {
  int64_t heads = 0;
  for (const RopeBackwardLaunch::Source& source : a.sources) heads = heads > source.heads ? heads : source.heads;
  const int64_t x = smaller(a.half / N, 32), y = smaller(heads, kThreads / x), z = smaller(kThreads / (x * y), kTokensMax);
  const dim3 threads(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
  rope_backward_kernel<T, N><<<static_cast<unsigned>((a.batch * a.length + z - 1) / z), threads, 0, stream>>>(a);
}

template <class T>
void start_for(const RopeBackwardLaunch& a, cudaStream_t stream) {
  const auto whole = [](int64_t elements) { return elements % kPack<T> == 0; };
  bool aligned = is_aligned(a.x) && is_aligned(a.cos) && is_aligned(a.sin) && whole(a.half) && whole(a.row_stride);
  for (const RopeBackwardLaunch::Source& source : a.sources)
    aligned = aligned && is_aligned(source.from) && whole(source.batch_stride) && whole(source.row_stride) && whole(source.head_stride);
  aligned ? start<T, kPack<T>>(a, stream) : start<T, 1>(a, stream);
}

}  // namespace

cudaError_t launch_rope_backward(const RopeBackwardLaunch& launch, cudaStream_t stream) {
  if (launch.batch * launch.length * launch.half == 0) return cudaSuccess;
  launch.elements == Elements::bf16 ? start_for<bf16>(launch, stream) : start_for<float>(launch, stream);
  return cudaGetLastError();
}

cudaError_t launch_rope(const RopeLaunch& launch, cudaStream_t stream) {
  if (launch.batch * launch.length * launch.heads * launch.half == 0) return cudaSuccess;
  launch.elements == Elements::bf16 ? start_for<bf16>(launch, stream) : start_for<float>(launch, stream);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
