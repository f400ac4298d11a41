// Which tensors the fast CPU kernels accept.
#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::kernels {

inline bool is_cpu_float(const at::Tensor& x) { return x.device().is_cpu() && x.scalar_type() == at::kFloat; }

// True if every tensor is fp32, on the CPU and contiguous.
template <class... Tensors>
bool all_cpu_float(const Tensors&... x) {
  return ((is_cpu_float(x) && x.is_contiguous()) && ...);
}

}  // namespace cairn::kernels
