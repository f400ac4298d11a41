// A build without CUDA has no normal values made on a GPU.
#include "kernels/optimizer/fill_normal_cuda.h"

namespace cairn::kernels {

bool fill_normal_on_cuda(const at::Tensor&, const base::Random&, int64_t, double) { return false; }

}  // namespace cairn::kernels
