// A build without CUDA has no rotary embedding for a GPU.
#include "kernels/rope_cuda.h"

namespace cairn::kernels {

bool rope_on_cuda(const at::Tensor&, const RopeTable&, int64_t, bool, const at::Tensor*) { return false; }

}  // namespace cairn::kernels
