#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "model/decoder/linear.h"
#include "model/decoder/norm.h"
#include "model/decoder/residual_branch.h"

namespace cairn::model {

// The sizes of a linear-attention layer, and how its states decay.
struct LinearAttentionShape {
  //   gated     each key dim of each token has its own: g = logsigmoid(gate_up(gate_down(x))) / normalizer (GLA)
  //   constant  one per head, g = log(1 - 2^(-5 - head)) (RetNet, lightning attention)
  //   none      plain linear attention
  enum class Decay { gated, constant, none };
  Decay decay = Decay::gated;
  int64_t heads = 4;
  int64_t key_dim = 16, value_dim = 32;  // of a head
  int64_t chunk = 64;
  int64_t gate_rank = 16;
  double gate_normalizer = 16;
  bool operator==(const LinearAttentionShape&) const = default;
};

// With in = norm(x), per head:
//   q, k, v, z = in w^T;  o = linear attention of q, k, v and g;  x + out(head_norm(o) * silu(z))
struct LinearAttentionParts {
  std::optional<Norm> norm = {};  // absent: a separate norm block
  Linear qkvz = {};               // queries, keys, values and output gates: four neighbours
  Linear gate_down = {}, gate_up = {};  // of gated decay: [rank, embed] and [heads * key_dim, rank] with a bias
  Norm head_norm = {};            // over value_dim
  Linear out = {};
};

// Along cp the sequence's slices are contiguous (context/linear_attention.h). Decoding keeps a state per sequence (KvCache::states).
std::unique_ptr<Block> make_linear_attention_block(const LinearAttentionShape& shape, int64_t embed, double dropout, BlockIo io,
                                                   LinearAttentionParts parts);

}  // namespace cairn::model
