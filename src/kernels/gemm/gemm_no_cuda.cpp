// A build without CUDA has no GEMMs on a GPU.
#include "kernels/gemm/gemm_cuda.h"

namespace cairn::kernels {

bool linear_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor*) { return false; }
bool linear_backward_input_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) { return false; }
bool linear_backward_weight_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) { return false; }

}  // namespace cairn::kernels
