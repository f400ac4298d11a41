// What the host wrapper of codes in eight bits hands to its CUDA kernels.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

constexpr int kFp8Parts = 1024;  // most parts of a matrix that each have a largest magnitude of their own

// The largest magnitude of each part of a bf16 matrix, as the bits of a float: those that are not finite are larger than all others.
struct Fp8AmaxLaunch {
  unsigned* amax;  // [parts]
  const void* x;
  int64_t rows, columns, stride;  // stride: elements from row to row
  int parts;
};
int fp8_parts(int64_t rows, int64_t columns);
cudaError_t launch_fp8_amax(const Fp8AmaxLaunch& launch, cudaStream_t stream);

struct Fp8Launch {
  void *by_rows, *by_columns;  // [rows, columns], [columns, filled]; null: not wanted
  float* factor;
  const void* x;
  const unsigned* amax;  // [parts]
  int64_t rows, columns, stride, filled;
  int parts;
  bool e5m2;
  // Where x are logits, and codes those of the gradient of their cross entropy:
  const float *lse = nullptr, *scale = nullptr;  // [rows]; one for each row, or one for all
  int64_t scale_stride = 0;                      // 1 or 0
  const int64_t* targets = nullptr;              // [rows]
  int64_t ignore = 0;
};
cudaError_t launch_fp8(const Fp8Launch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
