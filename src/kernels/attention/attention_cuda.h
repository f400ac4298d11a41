// Attention by GPU libraries (cuDNN, FlashAttention-2). A build without CUDA has these functions too; they do nothing.
#pragma once
#include <optional>

#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

struct AttentionOutput;
struct AttentionGradients;
struct AttentionOptions;

// As in attention.h. Each starts on the current stream of q's device and returns true, or its results. If no library has this case, it does
// nothing and returns false, or nothing.
bool attention_on_cuda(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const AttentionOptions& options);
bool attention_backward_on_cuda(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout,
                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                const AttentionOptions& options);

std::optional<AttentionOutput> attend_on_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                              const AttentionOptions& options);
std::optional<AttentionGradients> attention_gradients_on_cuda(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                                              const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                                              const AttentionOptions& options);

}  // namespace cairn::kernels
