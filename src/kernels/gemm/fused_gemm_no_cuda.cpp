// A build without CUDA has no fused GEMMs.
#include "kernels/gemm/fused_gemm_cuda.h"

namespace cairn::kernels {

bool is_hopper(const at::Device&) { return false; }
bool has_hopper_gemms() { return false; }
bool linear_swiglu_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, MinTiles) { return false; }
bool linear_swiglu_backward_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                    MinTiles) {
  return false;
}
bool linear_rope_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const RotatedHeads&, MinTiles) { return false; }
bool linear_swiglu_on_cuda(const at::Tensor&, const at::Tensor&, const Fp8Matrix&, const Fp8Matrix&, at::Tensor*, MinTiles) {
  return false;
}
bool linear_rope_on_cuda(const at::Tensor&, const Fp8Matrix&, const Fp8Matrix&, const RotatedHeads&, MinTiles) { return false; }

}  // namespace cairn::kernels
