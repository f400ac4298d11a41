// Learned keys and values in front of all tokens (ParScale's prefixes, arXiv:2505.10475), one set for each stream. Every query of the
// stream sees the whole prefix; prefix keys have no position.
//
// The attention contract merges results over disjoint keys by their log-sum-exp, so a prefix is one more call beside any attention over
// tokens: dense, block-sparse, over a KV cache or over ranks. It costs no padding of queries and shifts no mask.
#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::model {

// [streams, kv_heads, tokens, head_dim] each.
struct Prefixes {
  at::Tensor k, v;
};

// Rows of `q` [streams * batch, length, heads, head_dim] are stream by stream. `out` and `lse` hold the attention over tokens, as
// kernels::attention leaves it; they are overwritten with that over prefix and tokens.
void add_prefixes(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const Prefixes& prefixes);

// With out and lse over prefix and tokens: adds the prefix's part to dq, and returns the gradients of the prefixes. (dq over tokens comes
// from kernels::attention_backward with the same out and lse.)
Prefixes prefix_gradients(const at::Tensor& dq, const at::Tensor& dout, const at::Tensor& q, const Prefixes& prefixes,
                          const at::Tensor& out, const at::Tensor& lse);

// Streams as heads, for a KV cache with one row per sequence: [streams * batch, length, heads, head_dim] as [batch, length,
// streams * heads, head_dim], and back.
at::Tensor streams_as_heads(const at::Tensor& x, int64_t streams);
at::Tensor streams_as_rows(const at::Tensor& x, int64_t streams);
// The same of prefixes, without a copy: one stream with streams * kv_heads heads.
Prefixes streams_as_heads(const Prefixes& prefixes);

}  // namespace cairn::model
