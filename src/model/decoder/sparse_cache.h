// The KV cache of an attention block with a block pattern: each key head keeps its window and its strided blocks only.
#pragma once
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "kernels/attention.h"
#include "kernels/block_pattern.h"
#include "model/call.h"

namespace cairn::model {

// For each sparse key head: a ring of the last local_blocks blocks, and a list of the blocks on its stride, in order. A block on the stride
// is written to both as it comes, so nothing moves when it leaves the window. Dense heads keep every position. All heads of a layer have
// equally many places, so each kind is one tensor:
//   NAME.k.ring, NAME.v.ring  [batch, local_blocks * block, sparse heads, head_dim]
//   NAME.k.list, NAME.v.list  [batch, ceil(blocks / stride) * block, sparse heads, head_dim]
//   NAME.k, NAME.v            [batch, capacity, dense heads, head_dim]
// That is local_blocks * block + n / stride positions for each sparse head instead of n. Keys are kept rotated, so their order is free.
class SparseCache {
 public:
  // Whether blocks may be dropped: with a table or gaps in the window, a block that is hidden now may be seen later.
  static bool can_drop(const kernels::BlockPattern& pattern) { return !pattern.table && pattern.near_stride == 1; }

  // Borrows all three. `first_kv_head` is the model's number of this rank's first key head.
  SparseCache(const kernels::BlockPattern& pattern, int64_t first_kv_head, const std::string& name, KvCache& cache)
      : pattern_(pattern), first_(first_kv_head), name_(name), cache_(cache) {}

  // Appends keys and values [batch, length, heads, head_dim] of the positions from `begin` on.
  void append(const at::Tensor& k, const at::Tensor& v, int64_t begin);
  // Attention of one query [batch, 1, heads, head_dim] per sequence, at `position`, which has been appended: [batch, 1, heads, head_dim].
  at::Tensor attend(const at::Tensor& q, int64_t position) const;

 private:
  int64_t sparse_heads(int64_t kv_heads) const;  // of this rank
  int64_t first_on_stride(int64_t head) const;   // the number of the head's first block in the list
  at::Tensor& tensor(const std::string& what, const KvPlaces& places, const at::Tensor& like, int64_t heads);

  const kernels::BlockPattern& pattern_;
  int64_t first_;
  const std::string& name_;
  KvCache& cache_;
};

}  // namespace cairn::model
