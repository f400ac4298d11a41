// Block-sparse attention on a GPU (block_pattern.h). A build without CUDA has these functions too; they do nothing.
#pragma once
#include <optional>

#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

struct AttentionOutput;
struct AttentionGradients;
struct AttentionOptions;

// As attend_on_cuda() and attention_gradients_on_cuda() (attention_cuda.h), for calls with a pattern. Nothing: the kernels do not have this
// case (other types than bf16 and fp16, heads of other widths than 64 and 128, document ids, offsets within a block).
std::optional<AttentionOutput> block_attend_on_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const AttentionOptions& options);
std::optional<AttentionGradients> block_gradients_on_cuda(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                                          const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                                          const AttentionOptions& options);

}  // namespace cairn::kernels
