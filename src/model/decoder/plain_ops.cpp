#include "model/decoder/plain_ops.h"

#include <cmath>
#include <limits>

#include <ATen/core/IListRef.h>

#include "kernels/aten.h"
#include "model/decoder/prefix_attention.h"

namespace cairn::model {

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps) * weight;
}

at::Tensor plain_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.slice(-1, 0, half), b = x.slice(-1, half);
  const at::Tensor c = cos.unsqueeze(-2).to(x.scalar_type()), s = sin.unsqueeze(-2).to(x.scalar_type());  // [..., length, 1, head_dim / 2]
  return at::cat({a * c - b * s, b * c + a * s}, -1);
}

at::Tensor plain_gelu(const at::Tensor& x) {
  constexpr double kTwoOverPiRoot = 0.79788456080286535588;
  return 0.5 * x * (1 + at::tanh(kTwoOverPiRoot * (x + 0.044715 * x.pow(3))));
}

namespace {

// bool [kv_heads, length - first, length]
at::Tensor hidden_by(const kernels::BlockPattern& pattern, int64_t kv_heads, int64_t length, int64_t first) {
  const at::Tensor hidden = at::ones({kv_heads, length - first, length}, at::kBool);
  bool* at = hidden.mutable_data_ptr<bool>();
  for (int64_t head = 0; head < kv_heads; ++head)
    for (int64_t i = first; i < length; ++i)
      for (int64_t j = 0; j < length; ++j) *at++ = !pattern.sees(head, i / pattern.block, j / pattern.block);
  return hidden;
}

}  // namespace

at::Tensor plain_full_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t group = q.size(2) / k.size(2);
  const at::Tensor keys = k.repeat_interleave(group, 2).permute({0, 2, 3, 1}), values = v.repeat_interleave(group, 2).permute({0, 2, 1, 3});
  const at::Tensor scores = at::matmul(q.permute({0, 2, 1, 3}), keys) / std::sqrt(static_cast<double>(q.size(3)));
  return at::matmul(scores.softmax(-1), values).permute({0, 2, 1, 3}).contiguous();
}

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window, const at::Tensor& documents,
                           const kernels::BlockPattern* pattern, const Prefixes* prefixes) {
  const int64_t group = q.size(2) / k.size(2), q_len = q.size(1), k_len = k.size(1);
  const at::Tensor keys = k.repeat_interleave(group, 2).permute({0, 2, 3, 1});    // [batch, heads, head_dim, k_len]
  const at::Tensor values = v.repeat_interleave(group, 2).permute({0, 2, 1, 3});  // [batch, heads, k_len, head_dim]
  const at::Tensor scores = at::matmul(q.permute({0, 2, 1, 3}), keys) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor all = at::ones({q_len, k_len}, q.options().dtype(at::kBool));
  at::Tensor hidden = all.triu(k_len - q_len + 1);  // [q_len, k_len], or [batch, 1, q_len, k_len]
  if (window > 0) hidden = hidden.logical_or(all.tril(k_len - q_len - window));
  if (documents.defined()) hidden = hidden.logical_or(documents.unsqueeze(1).ne(documents.unsqueeze(2)).unsqueeze(1));
  if (pattern) hidden = hidden.logical_or(hidden_by(*pattern, k.size(2), k_len, k_len - q_len).repeat_interleave(group, 0).to(q.device()));
  const at::Tensor seen = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (!prefixes) return at::matmul(seen.softmax(-1), values).permute({0, 2, 1, 3}).contiguous();
  const auto of_rows = [&](const at::Tensor& prefix) {  // [batch, heads, tokens, head_dim]
    return prefix.repeat_interleave(q.size(0) / prefix.size(0), 0).repeat_interleave(group, 1);
  };
  const at::Tensor before =
      at::matmul(q.permute({0, 2, 1, 3}), of_rows(prefixes->k).transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  return at::matmul(at::cat({before, seen}, -1).softmax(-1), at::cat({of_rows(prefixes->v), values}, 2)).permute({0, 2, 1, 3}).contiguous();
}

}  // namespace cairn::model
