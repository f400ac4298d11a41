#include "model/llama.h"

#include <cmath>

#include <fmt/format.h>

#include "kernels/rope.h"
#include "model/llama_blocks.h"
#include "model/llama_config.h"

namespace cairn::model {
namespace {

class Llama final : public Model {
 public:
  explicit Llama(const LlamaShape& shape) : shape_(shape) {
    const mesh::ParamId table = Model::add({.name = "model.embed_tokens.weight",
                                            .shape = {shape.vocab, shape.embed},
                                            .axes = {"vocab", "embed"},
                                            .role = Parameter::Role::embedding,
                                            .uses = shape.tied ? 2 : 1});
    Model::add(make_llama_embedding(shape, table));
    std::string hidden = "hidden.0";
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const std::string middle = fmt::format("hidden.{}.5", layer), next = fmt::format("hidden.{}", layer + 1);
      add_attention(layer, hidden, middle);
      add_mlp(layer, middle, next);
      hidden = next;
    }
    const mesh::ParamId norm = add_norm("model.norm.weight");
    const mesh::ParamId head = shape.tied ? table
                                          : Model::add({.name = "lm_head.weight",
                                                        .shape = {shape.vocab, shape.embed},
                                                        .axes = {"vocab", "embed"},
                                                        .role = Parameter::Role::head});
    Model::add(make_llama_head(shape, hidden, norm, head));
  }

  Buffers make_buffers(const at::TensorOptions& options) const override {
    const kernels::RopeTable table = kernels::rope_table(shape_.length, shape_.head_dim, shape_.rope_theta, options);
    return {{"rope.cos", table.cos}, {"rope.sin", table.sin}};
  }

  std::string config_json() const override { return llama_config_json(shape_); }

 private:
  mesh::ParamId add_norm(std::string name) {
    return Model::add({.name = std::move(name),
                       .shape = {shape_.embed},
                       .axes = {"embed"},
                       .role = Parameter::Role::norm,
                       .start = Parameter::Start::ones});
  }

  // A projection; those that add to the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
  mesh::ParamId add_linear(std::string name, int64_t out, int64_t in, std::vector<std::string> axes, bool to_residual = false) {
    const double deviation = 0.02 / (to_residual ? std::sqrt(2.0 * static_cast<double>(shape_.layers)) : 1.0);
    return Model::add({.name = std::move(name), .shape = {out, in}, .axes = std::move(axes), .deviation = deviation});
  }

  void add_attention(int64_t layer, const std::string& reads, const std::string& writes) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    AttentionParameters p;
    p.norm = add_norm(at + "input_layernorm.weight");
    p.qkv = add_linear(at + "self_attn.q_proj.weight", shape_.heads * shape_.head_dim, shape_.embed, {"heads", "embed"});
    add_linear(at + "self_attn.k_proj.weight", shape_.kv_heads * shape_.head_dim, shape_.embed, {"kv_heads", "embed"});
    add_linear(at + "self_attn.v_proj.weight", shape_.kv_heads * shape_.head_dim, shape_.embed, {"kv_heads", "embed"});
    p.qkv.count = 3;
    p.out = add_linear(at + "self_attn.o_proj.weight", shape_.embed, shape_.heads * shape_.head_dim, {"embed", "heads"}, true);
    Model::add(make_llama_attention(shape_, fmt::format("layers.{}.attention", layer), reads, writes, p));
  }

  void add_mlp(int64_t layer, const std::string& reads, const std::string& writes) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    MlpParameters p;
    p.norm = add_norm(at + "post_attention_layernorm.weight");
    p.gate_up = add_linear(at + "mlp.gate_proj.weight", shape_.mlp, shape_.embed, {"mlp", "embed"});
    add_linear(at + "mlp.up_proj.weight", shape_.mlp, shape_.embed, {"mlp", "embed"});
    p.gate_up.count = 2;
    p.down = add_linear(at + "mlp.down_proj.weight", shape_.embed, shape_.mlp, {"embed", "mlp"}, true);
    Model::add(make_llama_mlp(shape_, fmt::format("layers.{}.mlp", layer), reads, writes, p));
  }

  LlamaShape shape_;
};

}  // namespace

std::unique_ptr<Model> make_llama(const LlamaShape& shape) { return std::make_unique<Llama>(shape); }

}  // namespace cairn::model
