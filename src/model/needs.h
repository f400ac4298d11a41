#pragma once
#include <string_view>

namespace cairn::model {

// What a model kind needs from a run and what it has: plain data beside the kind's line in models.cpp. The trainer, the planner and the
// command line derive their refusals and special cases from it. No other file compares the name of a model kind.
//
// The defaults describe a decoder.
struct ModelNeeds {
  enum class Data { tokens, features, clips, images };
  Data data = Data::tokens;         // tokens (text, or pairs of answers), features with class labels, or clips or pictures with them
  bool token_embedding = true;      // looks tokens up in a table, so embeddings can be perturbed
  bool large_vocabulary = true;     // its logits are large, so chunked cross entropy saves memory
  bool residual_stream = true;      // has branches on a residual stream: model.residual and model.dropout apply
  bool linear_attention = false;    // layers pass states from token to token
  bool experts = false;             // layers with experts: model.moe applies, and the host learns how many tokens each gets
  bool batch_norm = false;          // model.batch_norm applies
  bool half_precision = true;       // computes in bf16 where asked
  bool elastic = true;              // subnets may leave out layers and channels (supernet)
  bool causal = true;               // a token sees those before it only, so patterns and parallel streams apply
  bool running_statistics = false;  // may hold buffers that the host updates after each step, which a CUDA graph cannot replay
};

// The needs of the kind of this name (model.kind). Refuses an unknown name.
const ModelNeeds& needs_of(std::string_view kind);

}  // namespace cairn::model
