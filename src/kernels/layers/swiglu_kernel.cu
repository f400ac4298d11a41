// SwiGLU on a GPU: each thread processes two packs of a row at a time and reads all inputs before it writes, because results may overwrite
// inputs.
#include "kernels/cuda/pack.h"
#include "kernels/layers/swiglu_kernel.h"

namespace cairn::kernels {
namespace {

using device::bf16;
using device::is_aligned;
using device::kPack;
using device::Pack;

constexpr int kThreads = 256;
constexpr int kTogether = 2;  // packs of each array that a thread reads before it computes

template <class T>
__device__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 2)
    return device::sigmoid_approx(x);  // not good enough for fp32 itself
  else
    return 1.0f / (1.0f + expf(-x));
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluLaunch a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const T *gates = static_cast<const T*>(a.gate_up) + row * 2 * a.ff, *ups = gates + a.ff;
  T* to = static_cast<T*>(a.y) + row * a.ff;
  device::Amax<T> amax;
  const int64_t step = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * N; first < a.ff; first += kTogether * step) {
    Pack<T, N> gate[kTogether], up[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (first + k * step < a.ff) {
        gate[k] = Pack<T, N>::load(gates + first + k * step);
        up[k] = Pack<T, N>::load(ups + first + k * step);
      }
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (first + k * step < a.ff) {
        float y[N];
#pragma unroll
        for (int i = 0; i < N; ++i) y[i] = gate[k][i] * sigmoid<T>(gate[k][i]) * up[k][i];
        const auto rounded = Pack<T, N>::of(y);
        rounded.store(to + first + k * step);
        amax.update(rounded);
      }
  }
  amax.record(a.amax);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(SwigluBackwardLaunch a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const T *gates = static_cast<const T*>(a.gate_up) + row * 2 * a.ff, *ups = gates + a.ff, *from = static_cast<const T*>(a.dy) + row * a.ff;
  T *to_gates = static_cast<T*>(a.dgate_up) + row * 2 * a.ff, *to_ups = to_gates + a.ff;
  device::Amax<T> amax;
  T* again = a.y == nullptr ? nullptr : static_cast<T*>(a.y) + row * a.ff;
  const int64_t step = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * N; first < a.ff; first += kTogether * step) {
    Pack<T, N> gate[kTogether], up[kTogether], dy[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (first + k * step < a.ff) {
        gate[k] = Pack<T, N>::load(gates + first + k * step);
        up[k] = Pack<T, N>::load(ups + first + k * step);
        dy[k] = Pack<T, N>::load(from + first + k * step);
      }
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (first + k * step < a.ff) {
        float dgate[N], dup[N], y[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float g = gate[k][i], s = sigmoid<T>(g), silu = g * s;
          dgate[i] = dy[k][i] * up[k][i] * s * (1.0f + g * (1.0f - s));
          dup[i] = dy[k][i] * silu;
          y[i] = silu * up[k][i];
        }
        const auto gates_back = Pack<T, N>::of(dgate), ups_back = Pack<T, N>::of(dup);
        gates_back.store(to_gates + first + k * step);
        ups_back.store(to_ups + first + k * step);
        amax.update(gates_back);
        amax.update(ups_back);
        if (again != nullptr) Pack<T, N>::of(y).store(again + first + k * step);
      }
  }
  amax.record(a.amax);
}

// A block has as many thread columns as a row needs, in whole warps, and as many rows as fit.
struct Shape {
  unsigned blocks;
  dim3 threads;
  Shape(int64_t rows, int64_t ff, int pack) {
    const int64_t needed = (ff + pack * kTogether - 1) / (pack * kTogether), warps = (needed + 31) / 32;
    threads.x = static_cast<unsigned>(warps * 32 < kThreads ? warps * 32 : kThreads);
    threads.y = kThreads / threads.x;
    blocks = static_cast<unsigned>((rows + threads.y - 1) / threads.y);
  }
};

template <class T, int N>
void start(const SwigluLaunch& a, cudaStream_t stream) {
  const Shape shape(a.rows, a.ff, N);
  swiglu_kernel<T, N><<<shape.blocks, shape.threads, 0, stream>>>(a);
}

template <class T, int N>
void start(const SwigluBackwardLaunch& a, cudaStream_t stream) {
  const Shape shape(a.rows, a.ff, N);
  swiglu_backward_kernel<T, N><<<shape.blocks, shape.threads, 0, stream>>>(a);
}

template <class T, class Launch>
void start_for(const Launch& launch, bool aligned, cudaStream_t stream) {
  aligned&& launch.ff % kPack<T> == 0 ? start<T, kPack<T>>(launch, stream) : start<T, 1>(launch, stream);
}

template <class Launch>
cudaError_t start_any(const Launch& launch, bool aligned, cudaStream_t stream) {
  if (launch.rows == 0 || launch.ff == 0) return cudaSuccess;
  launch.elements == Elements::bf16 ? start_for<bf16>(launch, aligned, stream) : start_for<float>(launch, aligned, stream);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_swiglu(const SwigluLaunch& launch, cudaStream_t stream) {
  return start_any(launch, is_aligned(launch.y) && is_aligned(launch.gate_up), stream);
}

cudaError_t launch_swiglu_backward(const SwigluBackwardLaunch& launch, cudaStream_t stream) {
  return start_any(launch, is_aligned(launch.dgate_up) && is_aligned(launch.y) && is_aligned(launch.dy) && is_aligned(launch.gate_up),
                   stream);
}

}  // namespace cairn::kernels
