// Normal random values keyed by element, so that a tensor gets the same values however it is sharded.
#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::base {
struct Random;
}

namespace cairn::kernels {

// Overwrites the flat contiguous tensor: element i becomes a normal value with mean 0 and standard deviation `deviation`, a function of the
// key of `random` and first_index + i alone. fp32 values are bitwise identical on all devices; bf16 values are those, rounded.
void fill_normal(const at::Tensor& flat, const base::Random& random, int64_t first_index, double deviation);

}  // namespace cairn::kernels
