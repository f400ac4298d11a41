#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>

#include "model/context/blockwise.h"
#include "model/context/form.h"
#include "model/context/split.h"

namespace cairn::comm {
class Group;
}

namespace cairn::model {

// Attention over a sequence that is sharded over the ranks of `group`; a rank's index in the group is its coordinate in the split. All
// ranks of the group call it. q, out [batch, local, heads, head_dim], k, v [batch, local, kv_heads, head_dim], lse [batch, heads, local]:
// this rank's positions in storage order; dtypes and strides as for kernels::attention. `options` gives scale, causal and window (its
// offsets and documents are not used). documents: [batch, local] int64 of this rank's positions, on all ranks or on none. Overwrites out
// and lse. `after_kernel`: see AfterKernel; proofs let declared time pass there.
void context_attention(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group, const ContextSplit& split,
                       const ContextMethod& method, ContextMistakes mistakes = {}, const AfterKernel& after_kernel = {});

// Overwrites dq, dk, dv of this rank's positions. Gradients of half-precision keys and values are sent and summed in fp32.
void context_attention_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout,
                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                const kernels::AttentionOptions& options, const at::Tensor* documents, comm::Group& group,
                                const ContextSplit& split, const ContextMethod& method, const AfterKernel& after_kernel = {});

// Forward attention of new queries over keys that ranks keep: a chunk of a prompt, or decoding, over a sharded KV cache. `queries` gives
// the positions of each rank's queries, in [0, keys.length), of which the ranks may have few or none; `keys` those of its keys. Few queries
// travel for less than many keys (token_ring). Not for ulysses, which exchanges heads of as many queries as keys.
void context_attention_over_cache(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const kernels::AttentionOptions& options, comm::Group& group,
                                  const ContextSplit& queries, const ContextSplit& keys, const ContextMethod& method,
                                  const AfterKernel& after_kernel = {});

// The sizes that determine the messages of one call.
struct ContextSizes {
  int64_t batch = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 1;
  int64_t element_bytes = 4;  // of k and v
  bool documents = false;
  int64_t heads = 0;  // of queries; read for ulysses and token_ring
};

// Bytes that all ranks of the group send together, booked as Purpose::activation: the sums of context_tasks (context/traffic.h).
struct ContextBytes {
  int64_t forward = 0;
  int64_t backward = 0;
  bool operator==(const ContextBytes&) const = default;
};
ContextBytes context_bytes(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                           const ContextMethod& method);

}  // namespace cairn::model
