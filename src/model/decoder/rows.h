#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::model {

// A view of [batch, length, width] as the matrix [batch * length, width].
inline at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace cairn::model
