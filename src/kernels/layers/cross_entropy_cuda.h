// Cross entropy on a GPU. A build without CUDA has these functions too; they return false.
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
