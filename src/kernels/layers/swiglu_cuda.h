// SwiGLU on a GPU. A build without CUDA has these functions too; they return false.
#pragma once
#include <ATen/core/ATen_fwd.h>

namespace cairn::kernels {

// As in swiglu.h. Each starts its kernel on the current stream of gate_up's device and returns true; false, with nothing done, if there
// is none for these tensors.
bool swiglu_on_cuda(const at::Tensor& y, const at::Tensor& gate_up, at::Tensor* amax);
bool swiglu_backward_on_cuda(const at::Tensor& dgate_up, const at::Tensor& dy, const at::Tensor& gate_up, const at::Tensor* y,
                             at::Tensor* amax);

}  // namespace cairn::kernels
