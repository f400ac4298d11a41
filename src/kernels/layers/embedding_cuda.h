// Embedding lookup on a GPU. A build without CUDA has these functions too; they return false.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// As in embedding.h. Each starts its kernels on the current stream of the table's device and returns true; false, with nothing done, if
// there is none for these tensors. An id outside the vocabulary gives a row of NaN; its gradient goes nowhere.
bool embedding_on_cuda(const at::Tensor& y, const at::Tensor& table, const at::Tensor& ids);
bool embedding_backward_on_cuda(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dy);

}  // namespace cairn::kernels
