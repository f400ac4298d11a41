// What of an update by AdamW changes from step to step, as kernels use it.
#pragma once
#include <cstdint>

namespace cairn::kernels {

struct AdamwScalars {
  uint64_t key = 0, stream = 0;  // of base::Random, where p is rounded by it
  float decay = 1;               // p is multiplied by this first
  float step_size = 0;           // learning_rate / (1 - beta1^step)
  float inverse_root2 = 1;       // 1 / sqrt(1 - beta2^step)
  float unused = 0;              // 32 bytes, so that a row of them is one of four int64
};

}  // namespace cairn::kernels
