// Rotary embedding on a GPU. A build without CUDA has these functions too; they return false.
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
