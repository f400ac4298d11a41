#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

#include "model/context/split.h"

namespace cairn::comm {
class Group;
}

namespace cairn::model {

// Context parallelism: how a rank's queries see the keys of other ranks.
//   gather: one all-gather of keys and values, then one kernel call for each segment of queries. Backward gathers again and
//           reduce-scatters the gradients. Needs memory for the keys and values of the whole sequence, one layer at a time.
//   ring:   ring attention (arXiv:2310.01889). Blocks of keys and values go round the ring, each as far as some rank may see it; a block is
//           in flight while the one before is processed. Needs memory for two blocks. Backward: the gradient of a block follows it from
//           the first rank that sees it to the last, and is sent home from there.
// Both are exact; they differ in the order of sums, so in rounding.
enum class ContextForm { gather, ring };

// Attention over a sequence that is sharded over the ranks of `group`; a rank's index in the group is its coordinate in the split. All
// ranks of the group call it. q, out [batch, local, heads, head_dim], k, v [batch, local, kv_heads, head_dim], lse [batch, heads, local]:
// this rank's positions in storage order; dtypes and strides as for kernels::attention. `options` gives scale, causal and window (its
// offsets and documents are not used). documents: [batch, local] int64 of this rank's positions, on all ranks or on none. Overwrites out
// and lse.
void context_attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group, const ContextSplit& split,
                       ContextForm form);

// Overwrites dq, dk, dv of this rank's positions. Gradients of half-precision keys and values are sent and summed in fp32.
void context_attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout,
                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group,
                                const ContextSplit& split, ContextForm form);

// The sizes that determine the messages of one call.
struct ContextSizes {
  int64_t batch = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 1;
  int64_t element_bytes = 4;  // of k and v
  bool documents = false;
};

// Bytes that all ranks of the group send together, booked as Purpose::activation. With S_o the bytes of coordinate o's keys and values
// (2 batch held(o) kv_heads head_dim element_bytes) and documents (8 batch held(o)), and G_o those of the gradients of its keys and values
// (as before, in at least 4 bytes each):
//   gather  forward (n-1) sum S_o; backward (n-1) sum (S_o + G_o)
//   ring    forward sum last_o S_o; backward sum (last_o S_o + (last_o - first_o + 1) G_o), where the coordinates that see keys of o are
//           first_o to last_o steps ahead of it along the ring. Where every coordinate sees every other's (zigzag without a window, or no
//           causal mask) that is what gather sends; contiguous splits send half of it, short windows less.
struct ContextBytes {
  int64_t forward = 0;
  int64_t backward = 0;
  bool operator==(const ContextBytes&) const = default;
};
ContextBytes context_bytes(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                           ContextForm form);

}  // namespace cairn::model
