// A build without CUDA has no grouped products on a GPU.
#include "kernels/gemm/grouped_cuda.h"

namespace cairn::kernels {

bool grouped_linear_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const RowGroups&) { return false; }
bool grouped_linear_backward_input_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const RowGroups&) { return false; }
bool grouped_linear_backward_weight_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const RowGroups&, bool) {
  return false;
}

}  // namespace cairn::kernels
