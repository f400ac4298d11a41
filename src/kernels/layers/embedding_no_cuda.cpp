// A build without CUDA has no embedding lookup for a GPU.
#include "kernels/layers/embedding_cuda.h"

namespace cairn::kernels {

bool embedding_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&) { return false; }
bool embedding_backward_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&) { return false; }

}  // namespace cairn::kernels
