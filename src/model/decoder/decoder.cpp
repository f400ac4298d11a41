#include "model/decoder/decoder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "model/decoder/adapter_block.h"
#include "model/decoder/attention_pattern.h"
#include "model/decoder/blocks.h"
#include "model/decoder/decoder_parts.h"
#include "model/decoder/linear_attention_block.h"
#include "model/decoder/pool_index.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/served_adapters.h"
#include "model/decoder/stream_blocks.h"
#include "model/decoder/wiring.h"
#include "model/experts/balance.h"
#include "model/experts/moe_block.h"
#include "model/families/config.h"
#include "model/families/families.h"
#include "model/families/rope_angles.h"
#include "model/formed_weights.h"
#include "model/supernet/elastic_block.h"
#include "model/vision/patch_blocks.h"

namespace cairn::model {
namespace {

class Decoder final : public DecoderParts {
 public:
  enum class Output { logits, vectors };

  Decoder(const DecoderShape& shape, const AdapterShape& adapter, Output output = Output::logits,
          std::shared_ptr<const ServedAdapters> served = nullptr, std::shared_ptr<const WeightFormRule> forms = nullptr)
      : DecoderParts(shape, adapter, std::move(served), std::move(forms)) {
    if (family_.pictures) {
      add_picture_model();
      return;
    }
    const FamilyNames& names = family_.names;
    check_branch_adapters();
    check_experts();
    if (shape_.pattern) shape_.pattern->lists = kernels::make_block_list_cache();
    const mesh::ParamId table = Model::add({.name = names.embedding + ".weight",
                                            .shape = {shape.vocab, shape.embed},
                                            .axes = {"vocab", "embed"},
                                            .role = Parameter::Role::embedding,
                                            .uses = shape.tied && output == Output::logits ? 2 : 1});
    std::optional<mesh::ParamId> positions;
    if (!family_.rotary())
      positions = Model::add({.name = names.positions + ".weight",
                              .shape = {shape.length, shape.embed},
                              .axes = {"position", "embed"},
                              .role = Parameter::Role::embedding});
    const bool streams = shape.streams.count > 1;
    Model::add(make_embedding_block(shape, table, positions, streams ? "embedded" : "hidden.0"));
    if (streams) Model::add(make_repeat_block(shape, "embedded", "hidden.0"));
    const size_t first_of_layers = parameters().size();
    add_branches();
    if (shape.streams.along_tp) keep_whole(first_of_layers);
    const Norm norm = add_norm(names.final_norm, family_.norm, shape.embed, "embed");
    const std::string last = fmt::format("hidden.{}", shape.layers);
    if (streams) add_mixer(last, norm);
    if (output == Output::vectors) {
      Model::add(make_pool_block(shape, streams ? "mixed" : last, streams ? std::nullopt : std::optional(norm)));
      return;
    }
    const mesh::ParamId head = shape.tied ? table
                                          : Model::add({.name = names.head + ".weight",
                                                        .shape = {shape.vocab, shape.embed},
                                                        .axes = {"vocab", "embed"},
                                                        .role = Parameter::Role::head});
    Linear logits{.weight = head};
    if (adapts_head()) add_adapters(logits, {{names.head, shape.vocab, "vocab"}}, {"", shape.embed, "embed"});
    Model::add(make_head_block(shape, streams ? "mixed" : last, streams ? std::nullopt : std::optional(norm), std::move(logits)));
  }

  Buffers make_buffers(const at::TensorOptions& options) const override {
    Buffers buffers;
    for (const auto& [kind, pool] : pools_) {
      buffers["adapters." + kind + ".a"] = table_of(pool.index.a, options);
      buffers["adapters." + kind + ".b"] = table_of(pool.index.b, options);
    }
    for (const AdapterMatrix& one : in_modules_) one.add_buffers(buffers, options);
    for (const WeightForm* form : weight_forms(*this)) form->add_buffers(buffers, options);
    for (int64_t layer = 0; layer < shape_.layers; ++layer)
      if (const ExpertShape& experts = shape_.experts; experts.in_layer(layer))
        add_expert_buffers(buffers, fmt::format("layers.{}.mlp", layer), experts.count, options);
    if (!family_.rotary() || (family_.linear_attention && shape_.linear.softmax_layers.empty())) return buffers;
    const kernels::RopeTable table = rope_angles(shape_, shape_.table_length > 0 ? shape_.table_length : shape_.length, options);
    buffers["rope.cos"] = table.cos, buffers["rope.sin"] = table.sin;
    return buffers;
  }

  std::string config_json() const override { return format_config(shape_); }
  std::vector<std::string> loss_terms() const override {
    return shape_.experts.count > 0 ? std::vector<std::string>{"aux_loss", "z_loss"} : std::vector<std::string>{};
  }
  std::vector<std::pair<std::string, double>> end_step(Buffers& buffers, bool skipped,
                                                       const std::function<void(const at::Tensor&)>& sum) const override {
    if (shape_.experts.count == 0) return {};
    const double load = commit_expert_counts(buffers, skipped, sum);
    return load > 0 ? std::vector<std::pair<std::string, double>>{{"expert_load", load}} : std::vector<std::pair<std::string, double>>{};
  }
  ElasticShape elastic() const override {
    const FamilyNames& names = family_.names;
    ElasticShape elastic{.layers = {}, .other_flops = 0, .one_width = true};
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      const std::string at = fmt::format("{}.{}.", names.layers, layer);
      ElasticLayer& one = elastic.layers.emplace_back(ElasticLayer{
          .stage = 0, .place = layer, .name = fmt::format("layers.{}", layer), .tensors = at, .in = shape_.embed, .middle = shape_.mlp});
      const int64_t outputs = family_.fan_in_fan_out ? 1 : 0;
      for (const std::string& up : names.up) {
        one.of_middle.push_back({at + up + ".weight", outputs});
        if (shape_.mlp_bias) one.of_middle.push_back({at + up + ".bias", 0});
      }
      one.projection = {at + names.down + ".weight", 1 - outputs};
      one.of_middle.push_back(one.projection);
    }
    for (const std::unique_ptr<Block>& block : blocks()) add_flops(elastic, block->card());
    return elastic;
  }
  int64_t positions() const override { return family_.pictures ? shape_.pictures.positions() : 0; }

 private:
  // Of one token in a sequence as long as the model's, which attends to half of it.
  void add_flops(ElasticShape& elastic, const Card& card) const {
    const auto length = static_cast<double>(shape_.table_length > 0 ? shape_.table_length : shape_.length);
    double flops = 0;
    for (const BlockOp& one : card.operations) flops += one.flops_per_token + one.flops_per_pair * (one.causal ? (length + 1) / 2 : length);
    for (ElasticLayer& layer : elastic.layers) {
      if (!card.name.starts_with(layer.name + ".")) continue;
      layer.flops += flops;
      if (!card.name.ends_with(".mlp")) layer.fixed_flops += flops;
      return;
    }
    elastic.other_flops += flops;
  }

  // Patches of pictures in, classes out; the layers in between are those of decoders, without a causal mask.
  void add_picture_model() {
    const FamilyNames& names = family_.names;
    const PatchInput& input = shape_.pictures;
    const std::string at = names.positions.substr(0, names.positions.rfind('.') + 1);
    const auto add = [&](const std::string& name, std::vector<int64_t> sizes, std::vector<std::string> axes) {
      return Model::add({.name = name, .shape = std::move(sizes), .axes = std::move(axes), .role = Parameter::Role::embedding});
    };
    PatchParts parts;
    parts.token = add(at + "cls_token", {1, 1, shape_.embed}, {"one", "position", "embed"});
    parts.positions = add(names.positions, {1, input.positions(), shape_.embed}, {"one", "position", "embed"});
    parts.projection = add(names.embedding + ".weight", {shape_.embed, input.channels, input.patch, input.patch},
                           {"embed", "channels", "height", "width"});
    parts.bias = add_bias(names.embedding, shape_.embed, "embed");
    Model::add(make_patch_embedding_block(shape_, parts));
    add_branches();
    ClassHeadParts head{.norm = add_norm(names.final_norm, family_.norm, shape_.embed, "embed")};
    head.weight = Model::add({.name = names.head + ".weight",
                              .shape = {shape_.vocab, shape_.embed},
                              .axes = {"classes", "embed"},
                              .role = Parameter::Role::head});
    head.bias = add_bias(names.head, shape_.vocab, "classes");
    Model::add(make_class_head_block(shape_, fmt::format("hidden.{}", shape_.layers), std::move(head)));
  }

  // Attention and MLP in turn. A separate norm block runs before the branch that precedes its own, if its input is written by then. So in
  // forward it does not wait for that branch, and in backward the all-reduce of its gradient overlaps with it.
  void add_branches() {
    const std::vector<BranchWiring> wires = branch_wiring(shape_);
    struct Pending {
      std::unique_ptr<Block> norm, branch, adapter;
    };
    std::vector<Pending> all;
    for (size_t i = 0; i < wires.size(); ++i) {
      const auto layer = static_cast<int64_t>(i / 2);
      std::optional<Norm> norm;
      const bool attention = i % 2 == 0;
      const std::string name = fmt::format("layers.{}.{}", layer, attention ? "attention" : "mlp"), normed = name + ".in";
      const bool adapted = has_adapter(attention), behind = adapted && adapter_.behind_branches();
      const bool apart = token_layout(shape_) == TokenLayout::replicated || behind;
      const std::string writes = adapted ? name + ".out" : wires[i].writes;
      const BlockIo io =
          apart ? BlockIo{.name = name, .reads = normed, .writes = writes, .onto = behind ? "" : wires[i].onto, .with = wires[i].with}
                : BlockIo{.name = name, .reads = wires[i].reads, .writes = writes};
      Pending one;
      one.branch = !attention          ? shape_.experts.in_layer(layer) ? make_moe(layer, io) : make_mlp(layer, io, apart, norm)
                            : has_linear(layer) ? make_linear_attention(layer, io, apart, norm)
                                       : make_attention(layer, io, apart, norm);
      if (norm) one.norm = make_norm_block(shape_, {.name = name + "_norm", .reads = wires[i].reads, .writes = normed}, *norm);
      if (adapted)
        one.adapter = make_branch_adapter(layer, attention,
                                          {.name = name + "_adapter",
                                           .reads = behind ? writes : wires[i].reads,
                                           .onto = behind ? wires[i].reads : writes,
                                           .writes = wires[i].writes});
      all.push_back(std::move(one));
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const auto layer = static_cast<int64_t>(i / 2);
      if (all[i].norm) add_layer_block(layer, std::move(all[i].norm));
      const bool early = i + 1 < all.size() && all[i + 1].norm && wires[i + 1].reads != wires[i].writes;
      if (early) add_layer_block(static_cast<int64_t>((i + 1) / 2), std::move(all[i + 1].norm));
      add_layer_block(layer, std::move(all[i].branch));
      if (all[i].adapter) add_layer_block(layer, std::move(all[i].adapter));
    }
  }

  void add_layer_block(int64_t layer, std::unique_ptr<Block> block) {
    if (shape_.elastic_layers) block = make_elastic_block(std::move(block), 0, layer);
    Model::add(shape_.streams.count > 1 ? make_streamed_block(shape_, std::move(block)) : std::move(block));
  }

  // Layers whose streams lie along tp are split by streams, not by heads and widths.
  void keep_whole(size_t first) {
    for (size_t i = first; i < parameters().size(); ++i)
      for (std::string& axis : parameters()[i].axes)
        if (axis == "heads" || axis == "kv_heads" || axis == "qkv" || axis == "mlp") axis = "whole_" + axis;
  }

  // Prefixes and mixer have the names of published weights.
  void add_mixer(const std::string& reads, const Norm& norm) {
    const std::string& final_norm = family_.names.final_norm;
    const std::string at = final_norm.substr(0, final_norm.rfind('.') + 1) + "aggregate_layer.";
    const int64_t streams = shape_.streams.count, embed = shape_.embed;
    MixerParts parts{.norm = norm, .w1 = {}, .b1 = {}, .w2 = {}, .b2 = {}};
    const auto add = [&](const std::string& name, std::vector<int64_t> sizes, std::vector<std::string> axes) {
      const bool bias = sizes.size() == 1;
      return Model::add({.name = at + name,
                         .shape = std::move(sizes),
                         .axes = std::move(axes),
                         .role = Parameter::Role::adapter,
                         .init = bias ? Parameter::Init::zeros : Parameter::Init::normal});
    };
    parts.w1 = add("0.weight", {embed, streams * embed}, {"embed", "streams"});
    parts.b1 = add("0.bias", {embed}, {"embed"});
    parts.w2 = add("2.weight", {streams, embed}, {"streams", "embed"});
    parts.b2 = add("2.bias", {streams}, {"streams"});
    Model::add(make_mixer_block(shape_, reads, "mixed", parts));
  }

  AttentionParts::PrefixWeights add_prefixes(const std::string& projection) {
    const std::string at = projection.substr(0, projection.rfind('.') + 1);
    const auto add = [&](const char* name) {
      return Model::add({.name = at + name,
                         .shape = {shape_.streams.count, shape_.kv_heads, shape_.streams.prefix_tokens, shape_.head_dim},
                         .axes = {shape_.streams.along_tp ? "tp_streams" : "streams", "kv_heads", "prefix", "head"},
                         .role = Parameter::Role::adapter,
                         .queries_per_key = shape_.heads / shape_.kv_heads});
    };
    const mesh::ParamId k = add("prefix_k");
    return {k, add("prefix_v")};
  }

  std::unique_ptr<Block> make_attention(int64_t layer, const BlockIo& io, bool apart, std::optional<Norm>& norm) {
    const FamilyNames& names = family_.names;
    const std::string at = fmt::format("{}.{}.", names.layers, layer);
    const int64_t q = shape_.heads * shape_.head_dim, kv = shape_.kv_heads * shape_.head_dim;
    std::vector<Part> qkv;
    if (names.qkv.size() == 1) {
      qkv = {{at + names.qkv[0], q + 2 * kv, "qkv"}};
    } else {
      qkv = {{at + names.qkv[0], q, "heads"}, {at + names.qkv[1], kv, "kv_heads"}, {at + names.qkv[2], kv, "kv_heads"}};
    }
    AttentionParts parts{.rotary = family_.rotary(), .causal = !family_.pictures};
    if (has_pattern(shape_, layer)) parts.pattern = shape_.pattern;
    norm = add_norm(at + names.attention_norm, family_.norm, shape_.embed, "embed");
    if (!apart) parts.norm = std::exchange(norm, std::nullopt);
    parts.qkv = add_linear(qkv, {"", shape_.embed, "embed"}, shape_.qkv_bias);
    if (family_.qk_norm) {
      parts.normed_together = family_.qk_norm_together;
      const char* const axis = parts.normed_together ? "normed_heads" : "head";
      parts.q_norm = add_norm(at + "self_attn.q_norm", Norm::Kind::rms, parts.normed_together ? q : shape_.head_dim, axis);
      parts.k_norm = add_norm(at + "self_attn.k_norm", Norm::Kind::rms, parts.normed_together ? kv : shape_.head_dim, axis);
    }
    parts.out = add_linear({{at + names.out, shape_.embed, "embed"}}, {"", q, "heads"}, shape_.out_bias, /*to_residual=*/true);
    if (shape_.streams.count > 1) parts.prefix = add_prefixes(at + names.qkv[0]);
    return make_attention_block(shape_, io, std::move(parts));
  }

  bool has_linear(int64_t layer) const {
    const std::vector<int64_t>& softmax = shape_.linear.softmax_layers;
    return family_.linear_attention && !std::binary_search(softmax.begin(), softmax.end(), layer);
  }

  std::unique_ptr<Block> make_linear_attention(int64_t layer, const BlockIo& io, bool apart, std::optional<Norm>& norm) {
    const FamilyNames& names = family_.names;
    const LinearAttentionShape& s = shape_.linear;
    const std::string at = fmt::format("{}.{}.", names.layers, layer);
    const int64_t keys = s.heads * s.key_dim, values = s.heads * s.value_dim;
    LinearAttentionParts parts;
    norm = add_norm(at + names.attention_norm, family_.norm, shape_.embed, "embed");
    if (!apart) parts.norm = std::exchange(norm, std::nullopt);
    parts.qkvz = add_linear({{at + names.qkv[0], keys, "heads", s.key_dim},
                             {at + names.qkv[1], keys, "heads", s.key_dim},
                             {at + names.qkv[2], values, "heads", s.value_dim},
                             {at + "attn.g_proj", values, "heads", s.value_dim}},
                            {"", shape_.embed, "embed"}, /*bias=*/false);
    if (s.decay == LinearAttentionShape::Decay::gated) {
      parts.gate_down = add_linear({{at + "attn.gk_proj.0", s.gate_rank, "rank"}}, {"", shape_.embed, "embed"}, /*bias=*/false);
      parts.gate_up = add_linear({{at + "attn.gk_proj.1", keys, "heads", s.key_dim}}, {"", s.gate_rank, "rank"}, /*bias=*/true);
    }
    parts.head_norm = add_norm(at + "attn.g_norm_swish_gate", Norm::Kind::rms, s.value_dim, "head");
    parts.out =
        add_linear({{at + names.out, shape_.embed, "embed"}}, {"", values, "heads", s.value_dim}, /*bias=*/false, /*to_residual=*/true);
    return make_linear_attention_block(s, shape_.embed, shape_.dropout, io, std::move(parts));
  }

  std::unique_ptr<Block> make_moe(int64_t layer, const BlockIo& io) {
    const std::string at = fmt::format("{}.{}.", family_.names.layers, layer);
    MoeParts parts;
    parts.norm = add_norm(at + family_.names.mlp_norm, family_.norm, shape_.embed, "embed");
    add_experts(parts, at);
    return make_moe_block(shape_, io, std::move(parts));
  }

  std::unique_ptr<Block> make_mlp(int64_t layer, const BlockIo& io, bool apart, std::optional<Norm>& norm) {
    const FamilyNames& names = family_.names;
    const std::string at = fmt::format("{}.{}.", names.layers, layer);
    std::vector<Part> up;
    for (const std::string& name : names.up) up.push_back({at + name, shape_.mlp, "mlp"});
    MlpParts parts{.gated = family_.gated(), .exact_gelu = family_.exact_gelu};
    norm = add_norm(at + names.mlp_norm, family_.norm, shape_.embed, "embed");
    if (!apart) parts.norm = std::exchange(norm, std::nullopt);
    parts.up = add_linear(up, {"", shape_.embed, "embed"}, shape_.mlp_bias);
    parts.down = add_linear({{at + names.down, shape_.embed, "embed"}}, {"", shape_.mlp, "mlp"}, shape_.mlp_bias, /*to_residual=*/true);
    return make_mlp_block(shape_, io, std::move(parts));
  }
};

}  // namespace

std::unique_ptr<Model> make_decoder(const DecoderShape& shape, const AdapterShape& adapter, std::shared_ptr<const WeightFormRule> forms) {
  return std::make_unique<Decoder>(shape, adapter, Decoder::Output::logits, nullptr, std::move(forms));
}

std::unique_ptr<Model> make_serving_decoder(const DecoderShape& shape, std::shared_ptr<const ServedAdapters> adapters) {
  return std::make_unique<Decoder>(shape, AdapterShape{}, Decoder::Output::logits, std::move(adapters));
}

std::unique_ptr<Model> make_encoder(const DecoderShape& shape, const AdapterShape& adapter, std::shared_ptr<const WeightFormRule> forms) {
  return std::make_unique<Decoder>(shape, adapter, Decoder::Output::vectors, nullptr, std::move(forms));
}

}  // namespace cairn::model
