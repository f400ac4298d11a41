// The seam between the dispatch of rotary embedding and its CUDA kernel, which a build without CUDA answers with "no".
#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

struct RopeTable;
struct QkvGradients;

// As rope(). Starts the kernel on the current stream of x's device and returns true; false, with nothing done, if there is none for
// these tensors.
bool rope_on_cuda(const at::Tensor& x, const RopeTable& table, int64_t position, bool inverse, const at::Tensor* from);
bool rope_backward_on_cuda(const at::Tensor& x, const QkvGradients& from, const RopeTable& table, int64_t position);

}  // namespace cairn::kernels
