// How bf16 and fp16 tensors pass through kernels that compute in fp32: widened on the way in, rounded once on the way out.
#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::kernels {

inline bool is_half_precision(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

// In fp32 where it was lower, contiguous then; the tensor itself where it was not.
inline at::Tensor widened(const at::Tensor& x) { return is_half_precision(x) ? x.to(at::kFloat).contiguous() : x; }

// Room in fp32 for an output of lower precision; nothing of its values is carried over.
inline at::Tensor empty_widened(const at::Tensor& x) {
  return is_half_precision(x) ? at::Tensor(x.new_empty(x.sizes(), x.options().dtype(at::kFloat))) : x;
}

}  // namespace cairn::kernels
