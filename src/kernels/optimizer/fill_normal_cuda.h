// The seam between normal values and their CUDA kernel, which a build without CUDA answers with "no".
#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::base {
struct Random;
}

namespace cairn::kernels {

// As in fill_normal.h. False: not for it, and nothing was done.
bool fill_normal_on_cuda(const at::Tensor& flat, const base::Random& random, int64_t first_index, double deviation);

}  // namespace cairn::kernels
