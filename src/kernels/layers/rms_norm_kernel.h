// The arguments of the RMSNorm kernels.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

struct NormLaunch {
  Elements elements;
  void *y, *sum;  // sum only with r
  float* rstd;
  const void *x, *r, *weight;  // r null: a plain norm
  int64_t rows, embed;
  float eps;
  unsigned* amax;  // of y (cuda/pack.h); null: not wanted
};
cudaError_t launch_norm(const NormLaunch& launch, cudaStream_t stream);

struct NormInputLaunch {
  Elements elements;
  void* dx;
  const void *dy, *x, *weight, *add;  // add may be null
  const float* rstd;
  int64_t rows, embed;
  unsigned* amax;  // of dx
};
cudaError_t launch_norm_input(const NormInputLaunch& launch, cudaStream_t stream);

// The weight gradient is summed over parts of the rows, then the parts are added in order. The number of parts depends on the shape alone.
int64_t norm_weight_parts(int64_t rows, int64_t embed);
struct NormWeightLaunch {
  Elements elements;
  float *dw, *parts;  // parts: room for [norm_weight_parts, embed]
  const void *dy, *x;
  const float* rstd;
  int64_t rows, embed;
  bool accumulate;
};
cudaError_t launch_norm_weight(const NormWeightLaunch& launch, cudaStream_t stream);

// Both gradients, and the recomputed output. Each block makes one part of the weight gradient.
struct NormBackwardLaunch {
  Elements elements;
  void *dx, *y;                       // y may be null
  float *dw, *parts;                  // parts: room for [norm_backward_parts, embed]
  const void *dy, *x, *weight, *add;  // add may be null
  const float* rstd;
  int64_t rows, embed;
  unsigned* amax;  // of dx
};
bool norm_backward_supports(Elements elements, int64_t embed);
int64_t norm_backward_parts(Elements elements, int64_t rows, int64_t embed);
cudaError_t launch_norm_backward(const NormBackwardLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
