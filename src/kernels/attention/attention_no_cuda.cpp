// A build without CUDA has no attention for a GPU.
#include "kernels/attention.h"

#include "kernels/attention/attention_cuda.h"

namespace cairn::kernels {

bool attention_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                       const AttentionOptions&) {
  return false;
}
bool attention_backward_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const AttentionOptions&) {
  return false;
}

std::optional<AttentionOutput> attend_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const AttentionOptions&) {
  return std::nullopt;
}
std::optional<AttentionGradients> attention_gradients_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                              const at::Tensor&, const at::Tensor&, const AttentionOptions&) {
  return std::nullopt;
}

}  // namespace cairn::kernels
