// Attention to runs of positions that do not see each other, as packed documents are, by cuDNN itself. libtorch has cuDNN make a new plan
// each time it is asked for runs, which takes longer than attention does; here plans are kept. A build without cuDNN's headers has none.
#pragma once
#include <optional>

#include "kernels/attention.h"

namespace cairn::kernels {

bool has_cudnn_varlen();  // whether this build has

struct VarlenAttention {
  at::Tensor q, k, v;     // as in attention.h, as many queries as keys
  at::Tensor starts;      // int32 [batch, n], contiguous: where runs begin in a row, filled up with its length
  int64_t sequences_max;  // so many have a position, at most
  bool causal = true;
  double scale = 1;
};

// Nothing, and nothing done, where cuDNN has no plan for it. `dout` and `attended.out` are contiguous.
std::optional<AttentionOutput> cudnn_varlen(const VarlenAttention& sequences);
std::optional<AttentionGradients> cudnn_varlen_backward(const VarlenAttention& sequences, const at::Tensor& dout,
                                                        const AttentionOutput& attended);

}  // namespace cairn::kernels
