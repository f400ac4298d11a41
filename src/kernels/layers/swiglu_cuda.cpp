// SwiGLU on a GPU: from tensors to pointers.
#include "kernels/layers/swiglu_cuda.h"

#include <algorithm>

#include "kernels/aten.h"
#include "kernels/cuda/tensor.h"
#include "kernels/layers/swiglu_kernel.h"

namespace cairn::kernels {

bool swiglu_on_cuda(const at::Tensor& y, const at::Tensor& gate_up, at::Tensor* amax) {
  if (!all_kernel_inputs(gate_up, y)) return false;
  const CudaDeviceGuard device(gate_up.device());
  const int64_t ff = y.size(-1);
  const SwigluLaunch launch{.elements = elements_of(gate_up),
                            .y = y.mutable_data_ptr(),
                            .gate_up = gate_up.const_data_ptr(),
                            .rows = y.numel() / std::max<int64_t>(1, ff),
                            .ff = ff,
                            .amax = amax_words(amax, gate_up)};
  check_launch(launch_swiglu(launch, stream_of(gate_up)), "SwiGLU");
  return true;
}

bool swiglu_backward_on_cuda(const at::Tensor& dgate_up, const at::Tensor& dy, const at::Tensor& gate_up, const at::Tensor* y,
                             at::Tensor* amax) {
  if (!all_kernel_inputs(gate_up, dgate_up, dy) || (y != nullptr && !all_kernel_inputs(gate_up, *y))) return false;
  const CudaDeviceGuard device(gate_up.device());
  const int64_t ff = dy.size(-1);
  const SwigluBackwardLaunch launch{.elements = elements_of(gate_up),
                                    .dgate_up = dgate_up.mutable_data_ptr(),
                                    .y = y != nullptr ? y->mutable_data_ptr() : nullptr,
                                    .dy = dy.const_data_ptr(),
                                    .gate_up = gate_up.const_data_ptr(),
                                    .rows = dy.numel() / std::max<int64_t>(1, ff),
                                    .ff = ff,
                                    .amax = amax_words(amax, gate_up)};
  check_launch(launch_swiglu_backward(launch, stream_of(gate_up)), "SwiGLU gradient");
  return true;
}

}  // namespace cairn::kernels
