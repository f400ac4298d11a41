#pragma once
#include <memory>
#include <optional>
#include <string>

#include "model/block.h"
#include "model/decoder/linear.h"
#include "model/decoder/norm.h"
#include "model/decoder/residual_branch.h"
#include "model/decoder/shape.h"

namespace cairn::model {

// The blocks of a decoder, with hand-written forward, input gradient and weight gradient. Families differ only in the parts. Blocks read
// and write [batch, length, embed], under the names in `io` (decoder/residual_branch.h).
struct AttentionParts {
  std::optional<Norm> norm = {};  // absent: a separate norm block
  Linear qkv = {}, out = {};
  std::optional<Norm> q_norm = {}, k_norm = {};  // of each head, before rotation
  bool normed_together = false;                  // the norms are over all heads of a token together
  bool rotary = true;
  bool causal = true;  // a query sees only keys before it
  std::optional<kernels::BlockPattern> pattern = {};
  // Keys and values in front of the tokens, one set per stream: [streams, kv_heads, tokens, head_dim] each (prefix_attention.h).
  struct PrefixWeights {
    mesh::ParamId k, v;
  };
  std::optional<PrefixWeights> prefix = {};
};
// x + out(attention(norm(x))).
std::unique_ptr<Block> make_attention_block(const DecoderShape& shape, BlockIo io, AttentionParts parts);

struct MlpParts {
  std::optional<Norm> norm = {};
  Linear up = {}, down = {};
  bool gated = true;        // SwiGLU: `up` gives gate and up, silu(gate) * up. false: gelu(up)
  bool exact_gelu = false;  // gelu by the error function; false: in its tanh form
};
// x + down(activation(up(norm(x)))).
std::unique_ptr<Block> make_mlp_block(const DecoderShape& shape, BlockIo io, MlpParts parts);

// norm(x), for branches without a norm of their own.
std::unique_ptr<Block> make_norm_block(const DecoderShape& shape, BlockIo io, Norm norm);

// "tokens" -> `writes`: the token's row of the table, plus the position's row where there is a position table.
std::unique_ptr<Block> make_embedding_block(const DecoderShape& shape, mesh::ParamId table, std::optional<mesh::ParamId> positions,
                                            std::string writes = "hidden.0");
// head(norm(x)) -> "logits" [batch, length, vocab]; without a norm head(x).
std::unique_ptr<Block> make_head_block(const DecoderShape& shape, std::string reads, std::optional<Norm> norm, Linear head);
// Vectors of texts in place of logits: norm(x), or x, summed with the weights of the field "pool" -> "vectors" (decoder.h).
std::unique_ptr<Block> make_pool_block(const DecoderShape& shape, std::string reads, std::optional<Norm> norm);

}  // namespace cairn::model
