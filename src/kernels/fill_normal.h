// Normal values keyed by element, so that any piece of a tensor is filled alike on any layout.
#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::base {
struct Random;
}

namespace cairn::kernels {

// Overwrites the flat contiguous tensor: element i becomes a normal value of mean 0 and deviation `deviation` that depends only on the key
// of `random` and on first_index + i, not on threads, pieces or order. In fp32 the same bits on every device; in bf16 those, rounded.
void fill_normal(const at::Tensor& flat, const base::Random& random, int64_t first_index, double deviation);

}  // namespace cairn::kernels
