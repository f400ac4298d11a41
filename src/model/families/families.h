#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoder/norm.h"

namespace cairn::model {

// The names of a family's parameters, as Hugging Face writes them. Those of a layer follow "<layers>.<number>.".
struct FamilyNames {
  std::string embedding, positions, layers, final_norm, head;  // positions empty: rotary positions, no table
  std::string attention_norm;
  std::vector<std::string> qkv;  // three projections, or one that holds all three
  std::string out, mlp_norm;
  std::vector<std::string> up;  // gate and up (SwiGLU), or up alone (GELU)
  std::string down;
  // Of families with experts: files with one tensor per expert, "#" for its number: gate, up and down. The model's own names, which files
  // with stacked tensors have too, are mlp.gate, mlp.experts.gate_up_proj and mlp.experts.down_proj (expert_names.h).
  std::vector<std::string> expert = {};
  std::string router = {};
};

// How a family's config.json differs from that of the others.
struct FamilyConfig {
  enum class Keys { llama, gpt2, fla, vit };  // "hidden_size", "n_embd" and so on; fla: as flash-linear-attention writes them
  Keys keys = Keys::llama;
  // What a key means where it is missing.
  int64_t default_kv_heads = 32;   // num_key_value_heads; 0: as many as query heads
  int64_t default_head_dim = 0;    // head_dim; 0: hidden_size / num_attention_heads
  int64_t default_length = 32768;  // max_position_embeddings
  int64_t default_window = 4096;   // sliding_window; 0: none
  double default_norm_eps = 1e-6, default_rope_theta = 10000;
  // Which keys it has.
  bool attention_bias = false;
  bool qkv_bias = false;  // of queries, keys and values alone
  bool mlp_bias = false;
  bool sliding_window = false;
  bool use_sliding_window = false;  // a switch, which must be off
  // Of families with experts.
  std::string experts = {};       // the key of their number; empty: the family has none
  std::string expert_width = {};  // of the width of one
  int64_t default_experts = 8;
  int64_t default_experts_per_token = 2;
  bool norm_topk_prob = false;  // the key says whether weights of chosen experts add up to 1; otherwise they do
  bool dense_layers = false;    // decoder_sparse_step and mlp_only_layers name layers without experts
  bool shared_expert = false;   // shared_expert_intermediate_size
  // Probabilities of dropout, and what `transformers` takes where they are missing.
  std::vector<std::pair<std::string, double>> dropouts = {{"attention_dropout", 0.0}};
};

// Everything in which one family of transformers differs from the others. A new family is a record in families.cpp, and a few lines in
// config.cpp where its config.json has keys of its own. No other file compares the name of a family.
struct Family {
  std::string name;          // model_type of config.json, model.kind of a recipe
  std::string architecture;  // "LlamaForCausalLM"
  FamilyNames names;
  Norm::Kind norm = Norm::Kind::rms;
  bool qk_norm = false;                                       // each query and key head is normed before the rotation
  bool qk_norm_together = false;                              // the norm is over all heads of a token together
  bool fan_in_fan_out = false;                                // projections are stored [in, out]
  bool linear_attention = false;                              // layers have linear attention, but for those of linear.softmax_layers
  bool grouped_queries = true;                                // false: kv_heads = heads, and heads * head_dim = embed
  bool pictures = false;                                      // reads pictures, and is no decoder: every token sees all others
  bool exact_gelu = false;                                    // GELU by the error function, not in its tanh form
  bool qkv_bias = false, out_bias = false, mlp_bias = false;  // of a new model; a config.json may say otherwise
  FamilyConfig config = {};
  std::string linear_layers = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj";  // what LoRA may target, for messages
  std::vector<std::string> ignored_tensors = {".rotary_emb.inv_freq"};  // endings of tensors in weight files that are no parameters

  bool rotary() const { return names.positions.empty(); }
  bool gated() const { return names.up.size() == 2; }
  bool has_experts() const { return !config.experts.empty(); }
};

// Those of decoders.
const std::vector<Family>& families();
// Those that read pictures (vision/).
const std::vector<Family>& picture_families();
// Of either kind. Null for an unknown name.
const Family* find_family(std::string_view name);
// Throws bad_input with the nearest name for an unknown one.
const Family& family(const std::string& name);
std::vector<std::string> family_names();  // of decoders

}  // namespace cairn::model
