// The arguments of the cross entropy kernels.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

struct CrossEntropyLaunch {
  Elements elements;
  float *loss, *lse;  // [rows]; backward alone reads lse and needs no loss
  void* logits;       // [rows, vocab]
  const int64_t* targets;
  const float* scale;    // one per row, or one for all; the loss alone needs none
  int64_t scale_stride;  // 1 or 0
  int64_t rows, vocab;
  int64_t ignore, elsewhere;  // the two targets that are none
};
cudaError_t launch_cross_entropy(const CrossEntropyLaunch& launch, cudaStream_t stream);
cudaError_t launch_cross_entropy_backward(const CrossEntropyLaunch& launch, cudaStream_t stream);
cudaError_t launch_cross_entropy_and_gradient(const CrossEntropyLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
