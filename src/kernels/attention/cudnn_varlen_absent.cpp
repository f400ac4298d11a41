// Builds without cuDNN's headers.
#include "kernels/attention/cudnn_varlen.h"

namespace cairn::kernels {

bool has_cudnn_varlen() { return false; }

std::optional<AttentionOutput> cudnn_varlen(const VarlenAttention& /*inputs*/) { return std::nullopt; }

std::optional<AttentionGradients> cudnn_varlen_backward(const VarlenAttention& /*inputs*/, const at::Tensor& /*dout*/,
                                                        const AttentionOutput& /*attended*/) {
  return std::nullopt;
}

}  // namespace cairn::kernels
