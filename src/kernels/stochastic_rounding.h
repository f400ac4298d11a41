#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::base {
struct Random;
}

namespace cairn::kernels {

// Writes fp32 values into bf16, each rounded up or down to a neighbour with the odds of its distance, so that the mean over many
// roundings is the value itself and small updates are not lost. Element i draws number first_index + i of `random`, which is derived
// from seed, step and parameter name: the same on any layout. Values that bf16 holds, infinities and NaN stay what they are; what
// rounds beyond the largest bf16 becomes infinite. Both contiguous, on one device; a GPU gives
// the CPU's bits.
void round_stochastically(const at::Tensor& to /*bf16*/, const at::Tensor& from /*fp32*/, const base::Random& random, int64_t first_index);

// Its part for tensors on a GPU.
void round_stochastically_on_cuda(const at::Tensor& to, const at::Tensor& from, const base::Random& random, int64_t first_index);

}  // namespace cairn::kernels
