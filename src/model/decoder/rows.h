#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::model {

// All leading dims as one: [batch, length, width] as the matrix [batch * length, width] that products work on. A view.
inline at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace cairn::model
