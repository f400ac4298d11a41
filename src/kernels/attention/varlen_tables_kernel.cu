// One block goes over all documents, a thousand at a time, and compacts the non-empty ones by a prefix sum of ballots.
#include "kernels/attention/varlen_tables_kernel.h"

namespace cairn::kernels {
namespace {

constexpr int kWarp = 32, kWarps = 32, kThreads = kWarp * kWarps;
constexpr unsigned kAll = 0xffffffffu;

__device__ int64_t begin_of(const VarlenTablesLaunch& a, int64_t sequence) {
  const int64_t row = sequence / a.documents;
  return row < a.rows ? row * a.length + a.starts[sequence] : a.rows * a.length;
}

__device__ void write(const VarlenTablesLaunch& a, int64_t place, int64_t begin, int64_t positions) {
  if (place < a.sequences) a.tables[place] = static_cast<int32_t>(positions);
#pragma unroll
  for (int t = 0; t < kVarlenTensors; ++t)
    if (t < a.tensors) a.tables[(1 + t) * a.pitch + place] = static_cast<int32_t>(begin * a.strides[t]);
}

__global__ void __launch_bounds__(kThreads) varlen_tables_kernel(VarlenTablesLaunch a) {
  __shared__ int of_warp[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t given = a.rows * a.documents;
  int64_t before = 0;  // non-empty documents of earlier rounds
  for (int64_t first = 0; first < given; first += kThreads) {
    const int64_t sequence = first + threadIdx.x;
    const int64_t begin = sequence < given ? begin_of(a, sequence) : 0,
                  positions = sequence < given ? begin_of(a, sequence + 1) - begin : 0;
    const unsigned here = __ballot_sync(kAll, positions > 0);
    if (lane == 0) of_warp[warp] = __popc(here);
    __syncthreads();
    int64_t place = before + __popc(here & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) place += of_warp[w];
      before += of_warp[w];
    }
    if (positions > 0 && place < a.sequences) write(a, place, begin, positions);
    __syncthreads();  // before of_warp is written again
  }
  if (before > a.sequences) __trap();  // otherwise positions would be dropped silently
  for (int64_t place = before + threadIdx.x; place <= a.sequences; place += kThreads) write(a, place, a.rows * a.length, 0);
}

}  // namespace

cudaError_t launch_varlen_tables(const VarlenTablesLaunch& launch, cudaStream_t stream) {
  varlen_tables_kernel<<<1, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
