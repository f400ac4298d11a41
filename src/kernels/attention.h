// Attention with grouped queries, causal, window and document masks at global offsets. Every kernel (CPU tiles, cuDNN, FlashAttention-2)
// and every parallel form (context parallelism) keeps this one contract.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

struct BlockPattern;

// Which keys a query sees, and how scores are scaled. Query i of row b sees key j if all of these hold:
//   not causal, or key_offset + j <= query_offset + i;
//   no window, or key_offset + j > query_offset + i - window;
//   no document ids, or query_documents[b, i] == key_documents[b, j];
//   no pattern, or it shows the key's block to the query's, for this key head.
struct AttentionOptions {
  double scale = 0;  // multiplies q . k; 0: 1 / sqrt(head_dim)
  bool causal = true;
  int64_t window = 0;                           // 0: none
  int64_t query_offset = 0;                     // global position of the first query
  int64_t key_offset = 0;                       // global position of the first key
  const at::Tensor* query_documents = nullptr;  // [batch, q_len] int64 (borrowed); both or neither
  const at::Tensor* key_documents = nullptr;    // [batch, k_len] int64
  // For variable-length attention on a GPU, where queries and keys are the same positions: where documents begin in each row, int32
  // [batch, n], padded with the row length. n = 0: not known. It repeats the document ids, which are needed too.
  const at::Tensor* document_starts = nullptr;
  int64_t documents_max = 0;  // upper bound of documents in all rows together, usually far below batch * n; 0: not known
  // Block-sparse attention: only the blocks that are seen are visited. Causal, without a window; offsets are multiples of a block, except
  // for up to four queries. Borrowed.
  const BlockPattern* pattern = nullptr;
  int64_t first_kv_head = 0;  // pattern: the model's number of the first key head here (tensor parallelism holds a part of them)
};

// Shapes: q, out and their gradients [batch, q_len, heads, head_dim]; k, v and theirs [batch, k_len, kv_heads, head_dim]; lse [batch,
// heads, q_len], contiguous. heads is a multiple of kv_heads, and query head h reads key head h / (heads / kv_heads). With q, k, v in bf16
// or fp16, scores, sums and lse are fp32. The last dim is contiguous and other strides are free: q, k, v (and dq, dk, dv) may be slices of
// one fused buffer.

// Overwrites out and lse, the log-sum-exp of scale q . k over the keys seen. A query that sees no key gets out 0 and lse -inf.
// Results over disjoint keys can be merged: out = sum_i exp(lse_i - lse) out_i with lse = log sum_i exp(lse_i).
void attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const AttentionOptions& options);

// Overwrites dq, dk, dv. With the merged `out` and `lse` of the whole row, gradients over disjoint keys add up.
void attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const AttentionOptions& options);

// The same two with results in new tensors: GPU libraries allocate their own results, and these are not copied.
struct AttentionOutput {
  at::Tensor out, lse;
};
AttentionOutput attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options);
struct AttentionGradients {
  at::Tensor q, k, v;  // the last dim is contiguous
};
// Returns a library's own tensors, or `room`, overwritten.
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
