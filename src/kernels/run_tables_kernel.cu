// One block goes over all runs and counts those that are not empty, a thousand at a time.
#include "kernels/run_tables_kernel.h"

namespace cairn::kernels {
namespace {

constexpr int kWarp = 32, kWarps = 32, kThreads = kWarp * kWarps;
constexpr unsigned kAll = 0xffffffffu;

__device__ int64_t begin_of(const RunTablesLaunch& a, int64_t run) {
  const int64_t row = run / a.documents;
  return row < a.rows ? row * a.length + a.starts[run] : a.rows * a.length;
}

__device__ void write(const RunTablesLaunch& a, int64_t place, int64_t begin, int64_t positions) {
  if (place < a.runs) a.tables[place] = static_cast<int32_t>(positions);
#pragma unroll
  for (int t = 0; t < kRunTensors; ++t)
    if (t < a.tensors) a.tables[(1 + t) * a.pitch + place] = static_cast<int32_t>(begin * a.strides[t]);
}

__global__ void __launch_bounds__(kThreads) run_tables_kernel(RunTablesLaunch a) {
  __shared__ int of_warp[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t given = a.rows * a.documents;
  int64_t before = 0;  // of all that earlier rounds went over, so many are not empty
  for (int64_t first = 0; first < given; first += kThreads) {
    const int64_t run = first + threadIdx.x;
    const int64_t begin = run < given ? begin_of(a, run) : 0, positions = run < given ? begin_of(a, run + 1) - begin : 0;
    const unsigned here = __ballot_sync(kAll, positions > 0);
    if (lane == 0) of_warp[warp] = __popc(here);
    __syncthreads();
    int64_t place = before + __popc(here & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) place += of_warp[w];
      before += of_warp[w];
    }
    if (positions > 0 && place < a.runs) write(a, place, begin, positions);
    __syncthreads();  // before of_warp is written again
  }
  if (before > a.runs) __trap();  // positions would be left out in silence
  for (int64_t place = before + threadIdx.x; place <= a.runs; place += kThreads) write(a, place, a.rows * a.length, 0);
}

}  // namespace

cudaError_t launch_run_tables(const RunTablesLaunch& launch, cudaStream_t stream) {
  run_tables_kernel<<<1, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
