#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "kernels/block_pattern.h"

namespace cairn::model {

struct Prefixes;

// The operations of our blocks in plain differentiable ATen: the reference of the hand-written gradients.
// x / rms(x) * weight over the last dim.
at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// Rotates halves of the last dim; x [batch, length, heads, head_dim], cos and sin [length, head_dim / 2] or [batch, length, head_dim / 2].
at::Tensor plain_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
at::Tensor plain_gelu(const at::Tensor& x);
// Attention of every query to every key, grouped as below.
at::Tensor plain_full_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
// Causal attention with grouped queries; q [batch, q_len, heads, head_dim], k and v [batch, k_len, kv_heads, head_dim]; query i
// sees keys 0 .. k_len - q_len + i, of the last `window` of them where that is not 0, and of its own document where q_len = k_len
// document ids [batch, length] are given. A pattern hides blocks from the heads of the whole model. Prefixes are seen by every query of
// their stream.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window = 0,
                           const at::Tensor& documents = {}, const kernels::BlockPattern* pattern = nullptr,
                           const Prefixes* prefixes = nullptr);

}  // namespace cairn::model
