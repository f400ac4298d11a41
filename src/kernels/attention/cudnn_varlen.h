// Variable-length attention by cuDNN, called directly: packed sequences (documents) that do not see each other. libtorch makes a new cuDNN
// plan for every varlen call, which takes longer than the attention; here plans are cached. A build without cuDNN's headers has none.
#pragma once
#include <optional>

#include "kernels/attention.h"

namespace cairn::kernels {

bool has_cudnn_varlen();  // in this build

struct VarlenAttention {
  at::Tensor q, k, v;     // as in attention.h, with q_len = k_len
  at::Tensor starts;      // int32 [batch, n], contiguous: where sequences begin in each row, padded with the row length
  int64_t sequences_max;  // upper bound of non-empty sequences in all rows together
  bool causal = true;
  double scale = 1;
};

// Return nothing, and do nothing, where cuDNN has no plan for the case. `dout` and `attended.out` are contiguous.
std::optional<AttentionOutput> cudnn_varlen(const VarlenAttention& sequences);
std::optional<AttentionGradients> cudnn_varlen_backward(const VarlenAttention& sequences, const at::Tensor& dout,
                                                        const AttentionOutput& attended);

}  // namespace cairn::kernels
