#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "model/decoder/linear.h"
#include "model/decoder/linear_attention_shape.h"
#include "model/decoder/norm.h"
#include "model/decoder/residual_branch.h"

namespace cairn::model {

// With in = norm(x), per head:
//   q, k, v, z = in w^T;  o = linear attention of q, k, v and g;  x + out(head_norm(o) * silu(z))
struct LinearAttentionParts {
  std::optional<Norm> norm = {};        // absent: a separate norm block
  Linear qkvz = {};                     // queries, keys, values and output gates: four neighbours
  Linear gate_down = {}, gate_up = {};  // of gated decay: [rank, embed] and [heads * key_dim, rank] with a bias
  Norm head_norm = {};                  // over value_dim
  Linear out = {};
};

// Along cp the sequence's slices are contiguous (context/linear_attention.h). Decoding keeps a state per sequence (KvCache::states).
std::unique_ptr<Block> make_linear_attention_block(const LinearAttentionShape& shape, int64_t embed, double dropout, BlockIo io,
                                                   LinearAttentionParts parts);

}  // namespace cairn::model
