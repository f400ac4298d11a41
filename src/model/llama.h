#pragma once
#include <cstdint>
#include <memory>

#include "model/model.h"

namespace cairn::model {

// The shape of a Llama-style decoder.
struct LlamaShape {
  int64_t vocab = 1024;
  int64_t embed = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 32;
  int64_t mlp = 352;
  int64_t length = 128;  // longest sequence; the rotation tables are this long
  bool tied = true;      // the head is the embedding table
  double rope_theta = 10000;
  double norm_eps = 1e-5;
};

// Grouped-query attention, RoPE, RMSNorm, SwiGLU, tied or untied head; Hugging Face names. Reads "tokens" [batch, length] and
// writes "logits" [batch, length, vocab].
std::unique_ptr<Model> make_llama(const LlamaShape& shape);

}  // namespace cairn::model
