// A build without CUDA has no products for a GPU.
#include "kernels/fused_product_cuda.h"

namespace cairn::kernels {

bool is_hopper(const at::Device&) { return false; }
bool has_hopper_products() { return false; }
bool linear_swiglu_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, Fewest) { return false; }
bool linear_input_swiglu_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, Fewest) {
  return false;
}
bool linear_rope_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const Turned&, Fewest) { return false; }
bool linear_swiglu_on_cuda(const at::Tensor&, const at::Tensor&, const Fp8Matrix&, const Fp8Matrix&, at::Tensor*, Fewest) { return false; }
bool linear_rope_on_cuda(const at::Tensor&, const Fp8Matrix&, const Fp8Matrix&, const Turned&, Fewest) { return false; }

}  // namespace cairn::kernels
