// The recurrence of linear_attention.h, one token after the other, in differentiable ATen operations.
#include "kernels/linear_attention.h"

#include <cmath>
#include <vector>

#include "kernels/aten.h"

namespace cairn::kernels::reference {

LinearOutput linear_attention(const LinearAttention& on, const at::Tensor& initial) {
  const int64_t batch = on.q.size(0), heads = on.q.size(2), key_dim = on.q.size(3), value_dim = on.v.size(3);
  const double scale = on.scale != 0 ? on.scale : 1 / std::sqrt(static_cast<double>(key_dim));
  at::Tensor state = initial.defined() ? initial : at::zeros({batch, heads, key_dim, value_dim}, on.v.options());
  std::vector<at::Tensor> out;
  for (int64_t t = 0; t < on.q.size(1); ++t) {
    if (on.log_decay.defined()) state = state * at::exp(on.log_decay.select(1, t)).unsqueeze(3);
    if (on.starts.defined()) state = state.masked_fill(on.starts.select(1, t).view({batch, 1, 1, 1}), 0);
    state = state + on.k.select(1, t).unsqueeze(3) * on.v.select(1, t).unsqueeze(2);
    out.push_back((state * on.q.select(1, t).unsqueeze(3)).sum(2) * scale);
  }
  return {out.empty() ? at::zeros_like(on.v) : at::stack(out, 1), state};
}

}  // namespace cairn::kernels::reference
