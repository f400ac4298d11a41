// A build without CUDA has no rotary embedding for a GPU.
#include "kernels/rope_cuda.h"

namespace cairn::kernels {

bool rope_on_cuda(const at::Tensor&, const RopeTable&, int64_t, bool, const at::Tensor*) { return false; }
bool rope_back_on_cuda(const at::Tensor&, const HeadGradients&, const RopeTable&, int64_t) { return false; }

}  // namespace cairn::kernels
