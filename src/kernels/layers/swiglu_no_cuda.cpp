// A build without CUDA has no SwiGLU for a GPU.
#include "kernels/layers/swiglu_cuda.h"

namespace cairn::kernels {

bool swiglu_on_cuda(const at::Tensor&, const at::Tensor&, at::Tensor*) { return false; }
bool swiglu_backward_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor*, at::Tensor*) { return false; }

}  // namespace cairn::kernels
