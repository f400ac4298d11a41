// The seam between the dispatch of AdamW and its CUDA kernel, which a build without CUDA answers with "no".
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

struct AdamwStep;

// Starts the update on the current stream of p's device and returns true; false if there is no kernel for these tensors.
bool adamw_on_cuda(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, const AdamwStep& step);

}  // namespace cairn::kernels
