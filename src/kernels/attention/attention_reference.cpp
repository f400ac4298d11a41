// Attention in plain ATen operations: the reference of all kernels, and the fallback where no kernel fits.
#include "kernels/attention.h"

#include <cmath>
#include <limits>

#include "kernels/aten.h"
#include "kernels/block_pattern.h"

namespace cairn::kernels::reference {
namespace {

// [batch, heads, length, head_dim] with each key head repeated for the query heads that read it.
at::Tensor by_head(const at::Tensor& x, int64_t heads) {
  const at::Tensor t = x.transpose(1, 2);
  return t.size(1) == heads ? t : t.repeat_interleave(heads / t.size(1), 1);
}

// Gradients of repeated heads add up: [batch, heads, length, head_dim] to [batch, length, kv_heads, head_dim].
at::Tensor by_kv_head(const at::Tensor& x, int64_t kv_heads) {
  return x.reshape({x.size(0), kv_heads, x.size(1) / kv_heads, x.size(2), x.size(3)}).sum(2).transpose(1, 2);
}

// Which keys a pattern hides, position by position: bool [heads, q_len, k_len].
at::Tensor hidden_by_pattern(const AttentionOptions& options, int64_t heads, int64_t kv_heads, int64_t q_len, int64_t k_len) {
  const BlockPattern& pattern = *options.pattern;
  const int64_t first_row = options.query_offset / pattern.block, rows = (options.query_offset + q_len - 1) / pattern.block - first_row + 1;
  const int64_t first_column = options.key_offset / pattern.block,
                columns = (options.key_offset + k_len - 1) / pattern.block - first_column + 1;
  const at::Tensor hidden = at::ones({kv_heads, rows, columns}, at::kBool);
  for (int64_t h = 0; h < kv_heads; ++h)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        if (pattern.sees(options.first_kv_head + h, first_row + i, first_column + j))
          hidden.mutable_data_ptr<bool>()[(h * rows + i) * columns + j] = false;
  return hidden.repeat_interleave(heads / kv_heads, 0)
      .repeat_interleave(pattern.block, 1)
      .repeat_interleave(pattern.block, 2)
      .narrow(1, options.query_offset % pattern.block, q_len)
      .narrow(2, options.key_offset % pattern.block, k_len);
}

// Scores [batch, heads, q_len, k_len], -inf where the key is not seen.
at::Tensor masked_scores(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options) {
  const double scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor scores = at::matmul(q.transpose(1, 2) * scale, by_head(k, q.size(2)).transpose(2, 3));
  constexpr double hidden = -std::numeric_limits<double>::infinity();
  if (options.causal || options.window > 0) {
    const at::TensorOptions indices = q.options().dtype(at::kLong);
    const at::Tensor query = (at::arange(q.size(1), indices) + options.query_offset).unsqueeze(1);
    const at::Tensor key = (at::arange(k.size(1), indices) + options.key_offset).unsqueeze(0);
    if (options.causal) scores = scores.masked_fill(key > query, hidden);
    if (options.window > 0) scores = scores.masked_fill(key <= query - options.window, hidden);
  }
  if (options.key_documents != nullptr)
    scores = scores.masked_fill((options.query_documents->unsqueeze(2) != options.key_documents->unsqueeze(1)).unsqueeze(1), hidden);
  if (options.pattern != nullptr && q.size(1) > 0 && k.size(1) > 0)
    scores = scores.masked_fill(hidden_by_pattern(options, q.size(2), k.size(2), q.size(1), k.size(1)).to(q.device()), hidden);
  return scores;
}

// exp(scores - lse), 0 in rows that see no key (lse -inf).
at::Tensor weights_from(const at::Tensor& scores, const at::Tensor& lse) {
  return at::exp(scores - lse.masked_fill(lse == -std::numeric_limits<double>::infinity(), 0).unsqueeze(3));
}

}  // namespace

void attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const AttentionOptions& options) {
  const at::Tensor scores = masked_scores(q, k, options);
  lse.copy_(at::logsumexp(scores, {3}));
  out.copy_(at::matmul(weights_from(scores, lse.to(scores.scalar_type())), by_head(v, q.size(2))).transpose(1, 2));
}

void attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const AttentionOptions& options) {
  const double scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  const int64_t heads = q.size(2), kv_heads = k.size(2);
  const at::Tensor scores = masked_scores(q, k, options);
  const at::Tensor weights = weights_from(scores, lse.to(scores.scalar_type()));
  const at::Tensor gradient = dout.transpose(1, 2);
  const at::Tensor delta = (gradient * out.transpose(1, 2)).sum(3, /*keepdim=*/true);
  const at::Tensor dweights = at::matmul(gradient, by_head(v, heads).transpose(2, 3));
  const at::Tensor dscores = weights * (dweights - delta) * scale;
  const at::Tensor query_gradient = at::matmul(dscores, by_head(k, heads)).transpose(1, 2);
  const at::Tensor key_gradient = by_kv_head(at::matmul(dscores.transpose(2, 3), q.transpose(1, 2)), kv_heads);
  dv.copy_(by_kv_head(at::matmul(weights.transpose(2, 3), gradient), kv_heads));
  dq.copy_(query_gradient);
  dk.copy_(key_gradient);
}

}  // namespace cairn::kernels::reference
