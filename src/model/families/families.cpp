#include "model/families/families.h"

#include "base/did_you_mean.h"

namespace cairn::model {
namespace {

FamilyNames llama_names() {
  return {.embedding = "model.embed_tokens",
          .positions = "",
          .layers = "model.layers",
          .final_norm = "model.norm",
          .head = "lm_head",
          .attention_norm = "input_layernorm",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .out = "self_attn.o_proj",
          .mlp_norm = "post_attention_layernorm",
          .up = {"mlp.gate_proj", "mlp.up_proj"},
          .down = "mlp.down_proj"};
}

FamilyNames gpt2_names() {
  return {.embedding = "transformer.wte",
          .positions = "transformer.wpe",
          .layers = "transformer.h",
          .final_norm = "transformer.ln_f",
          .head = "lm_head",
          .attention_norm = "ln_1",
          .qkv = {"attn.c_attn"},
          .out = "attn.c_proj",
          .mlp_norm = "ln_2",
          .up = {"mlp.c_fc"},
          .down = "mlp.c_proj"};
}

Family llama() {
  return {.name = "llama",
          .architecture = "LlamaForCausalLM",
          .names = llama_names(),
          .config = {.default_kv_heads = 0, .default_length = 2048, .attention_bias = true, .mlp_bias = true}};
}

Family mistral() {
  return {.name = "mistral",
          .architecture = "MistralForCausalLM",
          .names = llama_names(),
          .config = {.default_kv_heads = 8, .default_length = 4096 * 32, .sliding_window = true}};
}

Family qwen2() {
  return {.name = "qwen2",
          .architecture = "Qwen2ForCausalLM",
          .names = llama_names(),
          .qkv_bias = true,
          .config = {.use_sliding_window = true}};
}

Family qwen3() {
  return {.name = "qwen3",
          .architecture = "Qwen3ForCausalLM",
          .names = llama_names(),
          .qk_norm = true,
          .config = {.default_head_dim = 128, .attention_bias = true, .use_sliding_window = true}};
}

// Names of one expert's matrices, as Qwen and OLMo write them.
FamilyNames names_with_experts() {
  FamilyNames names = llama_names();
  names.expert = {"mlp.experts.#.gate_proj", "mlp.experts.#.up_proj", "mlp.experts.#.down_proj"};
  names.router = "mlp.gate";
  return names;
}

constexpr const char* kAttentionLayers = "q_proj, k_proj, v_proj and o_proj (experts take no adapters)";

Family mixtral() {
  FamilyNames names = llama_names();
  names.expert = {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3", "block_sparse_moe.experts.#.w2"};
  names.router = "block_sparse_moe.gate";
  return {.name = "mixtral",
          .architecture = "MixtralForCausalLM",
          .names = names,
          .config = {.default_kv_heads = 8,
                     .default_length = 4096 * 32,
                     .default_window = 0,
                     .default_norm_eps = 1e-5,
                     .default_rope_theta = 1e6,
                     .sliding_window = true,
                     .experts = "num_local_experts",
                     .expert_width = "intermediate_size"},
          .linear_layers = kAttentionLayers};
}

Family qwen2_moe() {
  return {.name = "qwen2_moe",
          .architecture = "Qwen2MoeForCausalLM",
          .names = names_with_experts(),
          .qkv_bias = true,
          .config = {.default_kv_heads = 16,
                     .qkv_bias = true,
                     .use_sliding_window = true,
                     .experts = "num_experts",
                     .expert_width = "moe_intermediate_size",
                     .default_experts = 60,
                     .default_experts_per_token = 4,
                     .norm_topk_prob = true,
                     .dense_layers = true,
                     .shared_expert = true},
          .linear_layers = kAttentionLayers};
}

Family qwen3_moe() {
  return {.name = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .names = names_with_experts(),
          .qk_norm = true,
          .config = {.default_kv_heads = 4,
                     .attention_bias = true,
                     .use_sliding_window = true,
                     .experts = "num_experts",
                     .expert_width = "moe_intermediate_size",
                     .default_experts = 128,
                     .default_experts_per_token = 8,
                     .norm_topk_prob = true,
                     .dense_layers = true},
          .linear_layers = kAttentionLayers};
}

Family olmoe() {
  return {.name = "olmoe",
          .architecture = "OlmoeForCausalLM",
          .names = names_with_experts(),
          .qk_norm = true,
          .qk_norm_together = true,
          .config = {.default_kv_heads = 0,
                     .default_length = 4096,
                     .default_norm_eps = 1e-5,
                     .attention_bias = true,
                     .experts = "num_experts",
                     .expert_width = "intermediate_size",
                     .default_experts = 64,
                     .default_experts_per_token = 8,
                     .norm_topk_prob = true},
          .linear_layers = kAttentionLayers};
}

Family gpt2() {
  return {.name = "gpt2",
          .architecture = "GPT2LMHeadModel",
          .names = gpt2_names(),
          .norm = Norm::Kind::layer,
          .fan_in_fan_out = true,
          .grouped_queries = false,
          .qkv_bias = true,
          .out_bias = true,
          .mlp_bias = true,
          .config = {.keys = FamilyConfig::Keys::gpt2, .dropouts = {{"attn_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"resid_pdrop", 0.1}}},
          .linear_layers = "c_attn, c_proj and c_fc",
          .ignored_tensors = {".attn.bias", ".attn.masked_bias"}};  // causal masks, not biases
}

// Names and keys as in flash-linear-attention.
Family gla() {
  FamilyNames names = llama_names();
  names.embedding = "model.embeddings";
  names.attention_norm = "attn_norm", names.mlp_norm = "mlp_norm";
  names.qkv = {"attn.q_proj", "attn.k_proj", "attn.v_proj"};
  names.out = "attn.o_proj";
  return {.name = "gla",
          .architecture = "GLAForCausalLM",
          .names = names,
          .linear_attention = true,
          .config = {.keys = FamilyConfig::Keys::fla, .default_length = 2048, .dropouts = {}},
          .linear_layers = "q_proj, k_proj, v_proj, g_proj, o_proj, gate_proj, up_proj and down_proj"};
}

Family vit() {
  return {.name = "vit",
          .architecture = "ViTForImageClassification",
          .names = {.embedding = "vit.embeddings.patch_embeddings.projection",
                    .positions = "vit.embeddings.position_embeddings",
                    .layers = "vit.encoder.layer",
                    .final_norm = "vit.layernorm",
                    .head = "classifier",
                    .attention_norm = "layernorm_before",
                    .qkv = {"attention.attention.query", "attention.attention.key", "attention.attention.value"},
                    .out = "attention.output.dense",
                    .mlp_norm = "layernorm_after",
                    .up = {"intermediate.dense"},
                    .down = "output.dense"},
          .norm = Norm::Kind::layer,
          .grouped_queries = false,
          .pictures = true,
          .exact_gelu = true,
          .qkv_bias = true,
          .out_bias = true,
          .mlp_bias = true,
          .config = {.keys = FamilyConfig::Keys::vit, .dropouts = {{"attention_probs_dropout_prob", 0.0}, {"hidden_dropout_prob", 0.0}}},
          .linear_layers = "query, key, value, attention.output.dense, intermediate.dense and output.dense",
          .ignored_tensors = {"pooler.dense.weight", "pooler.dense.bias"}};  // of the model without a classifier
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> list{llama(), mistral(), qwen2(), qwen3(), gpt2(), gla(), mixtral(), qwen2_moe(), qwen3_moe(), olmoe()};
  return list;
}

const std::vector<Family>& picture_families() {
  static const std::vector<Family> list{vit()};
  return list;
}

const Family* find_family(std::string_view name) {
  for (const std::vector<Family>* list : {&families(), &picture_families()})
    for (const Family& one : *list)
      if (one.name == name) return &one;
  return nullptr;
}

const Family& family(const std::string& name) {
  if (const Family* found = find_family(name)) return *found;
  base::fail_unknown("model", name, family_names());
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& one : families()) names.push_back(one.name);
  return names;
}

}  // namespace cairn::model
