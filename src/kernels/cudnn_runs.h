// Attention to runs of positions that do not see each other, as packed documents are, by cuDNN itself. libtorch has cuDNN make a new plan
// each time it is asked for runs, which takes longer than attention does; here plans are kept. A build without cuDNN's headers has none.
#pragma once
#include <optional>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

bool has_cudnn_runs();  // whether this build has

struct RunsToAttend {
  at::Tensor q, k, v;  // [batch, length, heads, head_dim] as in attention.h, as many queries as keys
  at::Tensor starts;   // int32 [batch, n]: where runs begin in a row, filled up with its length
  bool causal = true;
  double scale = 1;
};

struct RunsAttended {
  at::Tensor out;  // like q, contiguous
  at::Tensor lse;  // [batch, length, heads], contiguous
};
struct RunGradients {
  at::Tensor q, k, v;  // contiguous
};

// Nothing where cuDNN has no plan for it. `dout` and what was attended to are contiguous.
std::optional<RunsAttended> cudnn_runs(const RunsToAttend& runs);
std::optional<RunGradients> cudnn_run_gradients(const RunsToAttend& runs, const at::Tensor& dout, const RunsAttended& attended);

}  // namespace cairn::kernels
