#pragma once
#include <memory>
#include <string>

#include "model/block.h"

namespace cairn::model {

struct LlamaShape;

// The four blocks of a Llama, each with forward, input gradient and weight gradient written by hand. `qkv` and `gate_up` name
// neighbouring parameters that are multiplied as one matrix.
struct AttentionParameters {
  mesh::ParamId norm, qkv, out;
};
struct MlpParameters {
  mesh::ParamId norm, gate_up, down;
};

// "tokens" [batch, length] -> "hidden.0" [batch, length, embed].
std::unique_ptr<Block> make_llama_embedding(const LlamaShape& shape, mesh::ParamId table);
// x + attention(norm(x)): reads and writes [batch, length, embed].
std::unique_ptr<Block> make_llama_attention(const LlamaShape& shape, std::string name, std::string reads, std::string writes,
                                            AttentionParameters parameters);
// x + mlp(norm(x)).
std::unique_ptr<Block> make_llama_mlp(const LlamaShape& shape, std::string name, std::string reads, std::string writes,
                                      MlpParameters parameters);
// head(norm(x)): writes "logits" [batch, length, vocab].
std::unique_ptr<Block> make_llama_head(const LlamaShape& shape, std::string reads, mesh::ParamId norm, mesh::ParamId head);

}  // namespace cairn::model
