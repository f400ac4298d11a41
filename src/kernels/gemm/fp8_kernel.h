// The arguments of the fp8 quantization kernels.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

constexpr int kFp8Parts = 1024;  // upper bound of partial amax values per matrix

// The amax of each part of a bf16 matrix, as the bits of a float. The bits of infinities and NaN are larger than those of all numbers.
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
  // Set where x holds logits and the codes are those of the gradient of their cross entropy:
  const float *lse = nullptr, *scale = nullptr;  // lse [rows]; scale [rows] or [1]
  int64_t scale_stride = 0;                      // 1 or 0
  const int64_t* targets = nullptr;              // [rows]
  int64_t ignore = 0;
};
cudaError_t launch_fp8(const Fp8Launch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
