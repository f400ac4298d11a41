// Embedding lookup on a GPU, and its gradient as a segmented sum in a fixed order, without atomics. The sorted ids are cut into slices of
// equal length. A warp goes through a slice for its columns and sums runs of equal ids. A run inside the slice is added to the table at
// once. The first and the last run may continue in other slices; their sums are stored, and a second kernel combines them.
#include "kernels/cuda/pack.h"
#include "kernels/layers/embedding_kernel.h"

namespace cairn::kernels {
namespace {

using device::bf16;
using device::is_aligned;
using device::kPack;
using device::Pack;

constexpr int kWarp = 32;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kSlice = 64;    // rows that a warp goes through
constexpr int kTogether = 4;  // of which so many are read at a time

// ---- lookup: a warp copies a row ----
template <class T, int N>
__global__ void __launch_bounds__(kThreads) embedding_kernel(EmbeddingLaunch a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= a.count) return;
  const int64_t id = a.ids[row];
  const bool known = id >= 0 && id < a.vocab;
  T* to = static_cast<T*>(a.y) + row * a.embed;
  const T* from = static_cast<const T*>(a.table) + (known ? id : 0) * a.embed;
  float broken[N];
  for (int i = 0; i < N; ++i) broken[i] = __uint_as_float(0x7fc00000u);  // NaN for an id outside, so that it shows
  for (int64_t d = static_cast<int64_t>(threadIdx.x % kWarp) * N; d < a.embed; d += kWarp * N)
    (known ? Pack<T, N>::load(from + d) : Pack<T, N>::of(broken)).store(to + d);
}

// ---- gradients ----
// Elements of S that are read or written at a time where a lane has N columns.
template <class S, int N>
constexpr int kStep = N < kPack<S> ? N : kPack<S>;

// to[0 .. N-1] += or = sum, in S.
template <bool kAdd, class S, int N>
__device__ void write_sums(S* to, const float (&sum)[N]) {
  using Some = Pack<S, kStep<S, N>>;
#pragma unroll
  for (int i = 0; i < N; i += kStep<S, N>) {
    float values[kStep<S, N>];
    Some before;
    if constexpr (kAdd) before = Some::load(to + i);
#pragma unroll
    for (int j = 0; j < kStep<S, N>; ++j) values[j] = kAdd ? before[j] + sum[i + j] : sum[i + j];
    Some::of(values).store(to + i);
  }
}

// The columns of a warp: N per lane. T: dtype of dy, S: dtype of dtable.
template <class T, class S, int N>
struct Columns {
  const EmbeddingBackwardLaunch& a;
  int64_t first;  // of this lane
  bool here;      // within the row

  __device__ Columns(const EmbeddingBackwardLaunch& launch, int64_t tile)
      : a(launch), first((tile * kWarp + threadIdx.x % kWarp) * N), here(first < launch.embed) {}

  __device__ Pack<T, N> gradient(int64_t place) const { return Pack<T, N>::load(static_cast<const T*>(a.dy) + place * a.embed + first); }
  __device__ float* end(int64_t slice, int which) const { return a.ends + (slice * 2 + which) * a.embed + first; }
  __device__ void add_to_table(int32_t id, const float (&sum)[N]) const {
    if (!here || id < 0 || id >= a.vocab) return;
    write_sums<true>(static_cast<S*>(a.dtable) + id * a.embed + first, sum);
  }
  __device__ void keep(int64_t slice, int which, const float (&sum)[N]) const {
    if (here) write_sums<false>(end(slice, which), sum);
  }
};

constexpr int kHead = 0, kTail = 1;  // the two ends of a slice

// Whether sorted ids i - 1 and i are equal: the run crosses the border before i.
__device__ bool goes_on(const EmbeddingBackwardLaunch& a, int64_t i) { return i > 0 && i < a.count && a.ids[i - 1] == a.ids[i]; }

template <class T, class S, int N>
__global__ void __launch_bounds__(kThreads) embedding_backward_kernel(EmbeddingBackwardLaunch a, int64_t slices) {
  const int64_t slice = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (slice >= slices) return;
  const Columns<T, S, N> columns(a, blockIdx.y);
  const int64_t begin = slice * kSlice, end = begin + kSlice < a.count ? begin + kSlice : a.count;
  bool from_before = goes_on(a, begin);
  float sum[N] = {};
  int32_t id = a.ids[begin];
  for (int64_t i = begin; i < end; i += kTogether) {
    Pack<T, N> rows[kTogether];
    int32_t ids[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (i + k < end) {
        ids[k] = a.ids[i + k];
        if (columns.here) rows[k] = columns.gradient(a.places[i + k]);
      }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (i + k >= end) continue;
      if (ids[k] != id) {
        from_before ? columns.keep(slice, kHead, sum) : columns.add_to_table(id, sum);
        from_before = false;
        id = ids[k];
        for (int d = 0; d < N; ++d) sum[d] = 0;
      }
      if (!columns.here) continue;
#pragma unroll
      for (int d = 0; d < N; ++d) sum[d] += rows[k][d];
    }
  }
  if (from_before)  // all of the slice is within one run, or the end of one
    columns.keep(slice, kHead, sum);
  else if (goes_on(a, end))
    columns.keep(slice, kTail, sum);
  else
    columns.add_to_table(id, sum);
}

// A warp combines the run that begins in its slice and continues beyond it, if there is one: the sums of the slices in their order.
template <class S, int N>
__global__ void __launch_bounds__(kThreads) embedding_ends_kernel(EmbeddingBackwardLaunch a, int64_t slices) {
  const int64_t slice = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (slice >= slices) return;
  const int64_t begin = slice * kSlice, end = begin + kSlice;
  if (!goes_on(a, end)) return;
  const int32_t id = a.ids[end];
  if (goes_on(a, begin) && a.ids[begin] == id) return;  // it began earlier: another warp has it
  const Columns<float, S, N> columns(a, blockIdx.y);
  if (!columns.here) return;
  float sum[N];
  for (int d = 0; d < N; ++d) sum[d] = columns.end(slice, kTail)[d];
  for (int64_t next = slice + 1; next * kSlice < a.count && a.ids[next * kSlice] == id; ++next)
    for (int d = 0; d < N; ++d) sum[d] += columns.end(next, kHead)[d];
  columns.add_to_table(id, sum);
}

template <class T, int N>
void start(const EmbeddingLaunch& a, cudaStream_t stream) {
  embedding_kernel<T, N><<<static_cast<unsigned>((a.count + kWarps - 1) / kWarps), kThreads, 0, stream>>>(a);
}

template <class T>
void start_for(const EmbeddingLaunch& a, cudaStream_t stream) {
  a.embed % kPack<T> == 0 && is_aligned(a.y) && is_aligned(a.table) ? start<T, kPack<T>>(a, stream) : start<T, 1>(a, stream);
}

template <class T, class S, int N>
void start_rows(const EmbeddingBackwardLaunch& a, cudaStream_t stream) {
  const int64_t slices = embedding_backward_slices(a.count);
  const auto grid = [&](int columns) {
    return dim3(static_cast<unsigned>((slices + kWarps - 1) / kWarps),
                static_cast<unsigned>((a.embed + columns * kWarp - 1) / (columns * kWarp)));
  };
  embedding_backward_kernel<T, S, N><<<grid(N), kThreads, 0, stream>>>(a, slices);
  embedding_ends_kernel<S, 1><<<grid(1), kThreads, 0, stream>>>(a, slices);
}

template <class T>
void start_for(const EmbeddingBackwardLaunch& a, cudaStream_t stream) {
  const bool whole = a.embed % kPack<T> == 0 && is_aligned(a.dy) && is_aligned(a.dtable) && is_aligned(a.ends);
  if (a.table_elements == Elements::bf16)
    whole ? start_rows<T, bf16, kPack<T>>(a, stream) : start_rows<T, bf16, 1>(a, stream);
  else
    whole ? start_rows<T, float, kPack<T>>(a, stream) : start_rows<T, float, 1>(a, stream);
}

template <class Launch>
cudaError_t start_any(const Launch& launch, cudaStream_t stream) {
  if (launch.count == 0 || launch.embed == 0) return cudaSuccess;
  launch.elements == Elements::bf16 ? start_for<bf16>(launch, stream) : start_for<float>(launch, stream);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_embedding(const EmbeddingLaunch& launch, cudaStream_t stream) { return start_any(launch, stream); }
cudaError_t launch_embedding_backward(const EmbeddingBackwardLaunch& launch, cudaStream_t stream) { return start_any(launch, stream); }

int64_t embedding_backward_slices(int64_t count) { return (count + kSlice - 1) / kSlice; }

}  // namespace cairn::kernels
