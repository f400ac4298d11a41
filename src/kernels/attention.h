// Attention with grouped queries, causal and document masks at global offsets: the one contract of every kernel and parallel form.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// Which key a query sees, and how scores are scaled. Key j is seen by query i if all hold:
//   not causal, or key_offset + j <= query_offset + i;
//   no window, or key_offset + j > query_offset + i - window;
//   no document ids, or query_documents[b, i] == key_documents[b, j].
struct AttentionOptions {
  double scale = 0;  // of q . k; 0 means 1 / sqrt(head_dim)
  bool causal = true;
  int64_t window = 0;                           // 0: none
  int64_t query_offset = 0;                     // global position of the first query here
  int64_t key_offset = 0;                       // and of the first key
  const at::Tensor* query_documents = nullptr;  // [batch, q_len] int64 (borrowed); both or neither
  const at::Tensor* key_documents = nullptr;    // [batch, k_len] int64
  // The same once more, where it is known and both are the same: where documents begin in a row, int32 [batch, n], filled up with its
  // length; n 0: not known after all. Libraries on a GPU take it.
  const at::Tensor* document_starts = nullptr;
  int64_t documents_max = 0;  // in all rows together, which may be far fewer than batch * n; 0: not known
};

// Shapes: q, out and their gradients [batch, q_len, heads, head_dim]; k, v and theirs [batch, k_len, kv_heads, head_dim], where
// heads is a multiple of kv_heads and query head h reads key head h / (heads / kv_heads); lse [batch, heads, q_len], contiguous.
// With q, k, v in bf16 or fp16, scores and sums are fp32 and so is lse.
// The last dim is contiguous, other strides are free: q, k, v (and dq, dk, dv) may be slices of one fused buffer.

// Overwrites out and lse, the log of the sum of exp(scale q . k) over seen keys. A query that sees no key: out 0, lse -inf.
// Results over disjoint keys merge: out = sum_i exp(lse_i - lse) out_i with lse = log sum_i exp(lse_i).
void attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const AttentionOptions& options);

// Overwrites dq, dk, dv. `out` and `lse` are those of the whole row: with merged ones, the gradients over disjoint keys add.
void attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const AttentionOptions& options);

// The same two where the results may lie anywhere: libraries on a GPU make tensors of their own, which are then not copied.
struct AttentionOutput {
  at::Tensor out, lse;
};
AttentionOutput attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options);
struct AttentionGradients {
  at::Tensor q, k, v;  // the last dim is contiguous
};
// `room`: overwritten and given back where they are not a library's own.
AttentionGradients attention_gradients(const AttentionGradients& room, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, const AttentionOptions& options);

namespace reference {
void attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const AttentionOptions& options);
void attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const AttentionOptions& options);
}  // namespace reference

}  // namespace cairn::kernels
