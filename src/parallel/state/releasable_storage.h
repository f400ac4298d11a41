#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::parallel {

// Memory that tensors have for a while only, so that others have it meanwhile. Views of a tensor stay what they are, with it and without;
// whoever reads one that has no memory reads at address 0, where libtorch does not see it before.
at::Tensor unallocated_tensor(int64_t elements, const at::TensorOptions& options);
bool has_storage(const at::Tensor& tensor);
void allocate_storage(const at::Tensor& tensor);  // whose contents are whatever lay there
void free_storage(const at::Tensor& tensor);      // from all that share it

}  // namespace cairn::parallel
