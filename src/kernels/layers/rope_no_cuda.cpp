// A build without CUDA has no rotary embedding for a GPU.
#include "kernels/layers/rope_cuda.h"

namespace cairn::kernels {

bool rope_on_cuda(const at::Tensor&, const RopeTable&, int64_t, bool, const at::Tensor*) { return false; }
bool rope_backward_on_cuda(const at::Tensor&, const QkvGradients&, const RopeTable&, int64_t) { return false; }

}  // namespace cairn::kernels
