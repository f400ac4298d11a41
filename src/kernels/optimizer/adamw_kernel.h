// The arguments of the AdamW kernel: a table of pieces, and what they have in common.
#pragma once
#include "kernels/adamw_scalars.h"
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

constexpr int kAdamwPieces = 44;                  // per launch: kernel arguments are limited to 4 KB
constexpr int64_t kAdamwBlockElements = 1 << 12;  // elements of one piece that a block of threads updates

struct AdamwPieceLaunch {
  void *p = nullptr, *m = nullptr, *v = nullptr;
  const void* g = nullptr;
  int64_t count = 0;
  int64_t first_index = 0;  // of its first element, for stochastic rounding
  AdamwScalars scalars = {};
  bool stochastic_rounding = false;  // p in bf16
  bool is_vectorized = false;        // set by launch_adamw
  unsigned first_block = 0;          // set by launch_adamw: those of the pieces before this one
};

struct AdamwLaunch {
  Elements parameters = Elements::fp32, gradients = Elements::fp32, moments = Elements::fp32;  // the same in all pieces
  const float* gradient_factor = nullptr;                                                      // one float on the device, or null
  const AdamwScalars* scalars = nullptr;  // on the device, by piece, in place of those here; or null
  float gradient_scale = 1, beta1 = 0, beta2 = 0, eps = 0;
  int pieces = 0;
  AdamwPieceLaunch piece[kAdamwPieces] = {};
};
static_assert(sizeof(AdamwLaunch) < 4096);

cudaError_t launch_adamw(AdamwLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
