// A build without CUDA has no RMSNorm for a GPU.
#include "kernels/layers/rms_norm_cuda.h"

namespace cairn::kernels {

bool rms_norm_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor*, const at::Tensor&, const at::Tensor*, const at::Tensor&,
                      double, at::Tensor*) {
  return false;
}
bool rms_norm_backward_input_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                     const at::Tensor*, at::Tensor*) {
  return false;
}
bool rms_norm_backward_weight_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) { return false; }

bool rms_norm_backward_on_cuda(const RmsNormGradients&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                               const at::Tensor*) {
  return false;
}
bool has_fused_backward_on_cuda(const at::Tensor&) { return false; }

}  // namespace cairn::kernels
