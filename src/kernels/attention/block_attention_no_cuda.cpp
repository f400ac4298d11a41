// A build without CUDA has no block-sparse attention for a GPU.
#include "kernels/attention.h"
#include "kernels/attention/block_attention_cuda.h"
#include "kernels/block_pattern.h"

namespace cairn::kernels {

std::shared_ptr<BlockListCache> make_block_list_cache() { return nullptr; }

std::optional<AttentionOutput> block_attend_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const AttentionOptions&) {
  return std::nullopt;
}
std::optional<AttentionGradients> block_gradients_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                          const at::Tensor&, const at::Tensor&, const AttentionOptions&) {
  return std::nullopt;
}

}  // namespace cairn::kernels
