#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::base {
struct Random;
}

namespace cairn::kernels {

// Stochastic rounding of fp32 values to bf16. Overwrites `to`. A value becomes one of its two bf16 neighbours, with a probability
// proportional to the distance from the other, so the expectation is the value and small updates are not lost. Element i uses number
// first_index + i of `random`, so the result does not depend on sharding. Values that bf16 represents, infinities and NaN are kept; a value
// that rounds beyond the largest bf16 becomes infinite. Both tensors are contiguous and on one device. CPU and GPU results are bitwise
// identical.
void round_stochastically(const at::Tensor& to /*bf16*/, const at::Tensor& from /*fp32*/, const base::Random& random, int64_t first_index);

// The same for tensors on a GPU.
void round_stochastically_on_cuda(const at::Tensor& to, const at::Tensor& from, const base::Random& random, int64_t first_index);

}  // namespace cairn::kernels
