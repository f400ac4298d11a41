// How bf16 and fp16 tensors pass through kernels that compute in fp32: widened on the way in, rounded once on the way out.
#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::kernels {

inline bool is_half_precision(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

// A contiguous fp32 copy of a half-precision tensor; any other tensor itself.
inline at::Tensor widened(const at::Tensor& x) { return is_half_precision(x) ? x.to(at::kFloat).contiguous() : x; }

// An uninitialised fp32 tensor of the shape of a half-precision output; any other output itself.
inline at::Tensor empty_widened(const at::Tensor& x) {
  return is_half_precision(x) ? at::Tensor(x.new_empty(x.sizes(), x.options().dtype(at::kFloat))) : x;
}

}  // namespace cairn::kernels
