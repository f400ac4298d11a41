// A thread for each run.
#include "kernels/run_tables_kernel.h"

namespace cairn::kernels {
namespace {

constexpr int kThreads = 256;

__device__ int32_t begin_of(const RunTablesLaunch& a, int64_t run) {
  const int64_t row = run / a.documents;
  return static_cast<int32_t>(row < a.rows ? row * a.length + a.starts[run] : a.rows * a.length);
}

__global__ void __launch_bounds__(kThreads) run_tables_kernel(RunTablesLaunch a) {
  const int64_t run = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (run > a.runs) return;
  const int32_t begin = begin_of(a, run);
  if (run < a.runs) a.tables[run] = begin_of(a, run + 1) - begin;
#pragma unroll
  for (int t = 0; t < kRunTensors; ++t) a.tables[(1 + t) * a.pitch + run] = begin * a.strides[t];
}

}  // namespace

cudaError_t launch_run_tables(const RunTablesLaunch& launch, cudaStream_t stream) {
  run_tables_kernel<<<static_cast<unsigned>(launch.runs / kThreads + 1), kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
