// The scalars of an AdamW update that change from step to step, as kernels use them.
#pragma once
#include <cstdint>

namespace cairn::kernels {

struct AdamwScalars {
  uint64_t key = 0, stream = 0;  // of base::Random, for stochastic rounding of p
  float decay = 1;               // 1 - learning_rate * weight_decay
  float step_size = 0;           // learning_rate / (1 - beta1^step)
  float inverse_root2 = 1;       // 1 / sqrt(1 - beta2^step)
  float unused = 0;              // pads to 32 bytes: a row of four int64
};

}  // namespace cairn::kernels
