// The seam between the dispatch of cross entropy and its CUDA kernels, which a build without CUDA answers with "no".
#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// As in cross_entropy.h. Each starts its kernel on the current stream of the logits' device and returns true; false, with nothing done,
// if there is none for these tensors.
bool cross_entropy_on_cuda(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                           int64_t ignore);
bool cross_entropy_backward_on_cuda(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                                    int64_t ignore);
bool cross_entropy_and_gradient_on_cuda(const at::Tensor& loss, const at::Tensor& lse, const at::Tensor& logits, const at::Tensor& targets,
                                        const at::Tensor& scale, int64_t ignore);

}  // namespace cairn::kernels
