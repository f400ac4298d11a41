// Normal values on a GPU. A build without CUDA has this function too; it returns false.
#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::base {
struct Random;
}

namespace cairn::kernels {

// As in fill_normal.h. False: no kernel for this tensor; nothing was done.
bool fill_normal_on_cuda(const at::Tensor& flat, const base::Random& random, int64_t first_index, double deviation);

}  // namespace cairn::kernels
