// T5 and OPT.

#include <fmt/format.h>

#include "planner/graph/described_models.h"
#include "planner/graph/describer.h"

namespace cairn::planner {
namespace {

using TextKind = model::BlockOp::Kind;
constexpr Describer::Bias kNoBias = Describer::Bias::none, kWithBias = Describer::Bias::one;

// One half of a T5: its encoder or its decoder.
class T5Stack {
 public:
  T5Stack(Describer& into, const EncoderDecoderShape& shape, std::string name, std::string ids, mesh::ParamId table)
      : into_(into), shape_(shape), name_(std::move(name)), inner_(shape.heads * shape.head_dim) {
    into_.card(name_ + ".embedding", {std::move(ids)}, stream());
    into_.operation({.name = "lookup", .kind = TextKind::lookup, .parameters = {table}});
  }

  void add_layers() {
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      int64_t branch = 0;
      self_attention(layer, branch++);
      if (is_decoder()) cross_attention(layer, branch++);
      feed_forward(layer, branch);
    }
  }
  void add_norm(const std::string& writes) {
    into_.card(name_ + ".final", {stream()}, writes);
    into_.norm(name_ + ".final_layer_norm", shape_.embed, kNoBias);
  }
  std::string stream() const { return fmt::format("{}.hidden.{}", name_, branches_); }

 private:
  bool is_decoder() const { return name_ == "decoder"; }
  std::string path(int64_t layer, int64_t branch) const { return fmt::format("{}.block.{}.layer.{}", name_, layer, branch); }

  // The card of the next branch, up to its norm; returns what its result is added to.
  std::string begin(int64_t layer, int64_t branch, std::vector<std::string> also) {
    const std::string before = stream();
    ++branches_;
    also.insert(also.begin(), before);
    into_.card(path(layer, branch), also, stream());
    into_.norm(path(layer, branch) + ".layer_norm", shape_.embed, kNoBias);
    return before;
  }
  // The bias of the first layer, which all layers read.
  void position_bias() {
    into_.card(name_ + ".position_bias", {}, name_ + ".bias");
    into_.optional_reads(name_ + ".relative_positions");
    into_.operation(
        {.name = "bias",
         .kind = TextKind::lookup,
         .parameters = {into_.parameter(path(0, 0) + ".SelfAttention.relative_attention_bias.weight", {shape_.buckets, shape_.heads})},
         .flops_per_pair = static_cast<double>(shape_.heads),
         .reads = {name_ + ".relative_positions"}});
  }
  void self_attention(int64_t layer, int64_t branch) {
    if (layer == 0) position_bias();
    const std::string before = begin(layer, branch, {name_ + ".bias"}), at = path(layer, branch) + ".SelfAttention.";
    for (const char* one : {"q", "k", "v"}) into_.product(at + one, shape_.embed, inner_, kNoBias, {"norm"});
    into_.attention({"q", "k", "v", name_ + ".bias"}, shape_.heads, inner_, is_decoder());
    into_.product(at + "o", inner_, shape_.embed, kNoBias);
    into_.add({"o", before});
  }
  void cross_attention(int64_t layer, int64_t branch) {
    const std::string before = begin(layer, branch, {"encoded"}), at = path(layer, branch) + ".EncDecAttention.";
    into_.product(at + "q", shape_.embed, inner_, kNoBias, {"norm"});
    for (const char* one : {"k", "v"}) into_.product(at + one, shape_.embed, inner_, kNoBias, {"encoded"});
    into_.attention({"q", "k", "v"}, shape_.heads, inner_, /*causal=*/false);
    into_.product(at + "o", inner_, shape_.embed, kNoBias);
    into_.add({"o", before});
  }
  void feed_forward(int64_t layer, int64_t branch) {
    const std::string before = begin(layer, branch, {}), at = path(layer, branch) + ".DenseReluDense.";
    if (shape_.gated) {
      for (const char* one : {"wi_0", "wi_1"}) into_.product(at + one, shape_.embed, shape_.mlp, kNoBias, {"norm"});
      into_.elementwise("gelu", {"wi_0"});
      into_.operation({.name = "multiply", .kind = TextKind::multiply, .reads = {"gelu", "wi_1"}});
    } else {
      into_.product(at + "wi", shape_.embed, shape_.mlp, kNoBias);
      into_.elementwise("relu");
    }
    into_.product(at + "wo", shape_.mlp, shape_.embed, kNoBias);
    into_.add({"wo", before});
  }

  Describer& into_;
  EncoderDecoderShape shape_;
  std::string name_;
  int64_t inner_, branches_ = 0;
};

}  // namespace

Description t5(const EncoderDecoderShape& shape) {
  Describer all;
  const mesh::ParamId table = all.parameter("shared.weight", {shape.vocab, shape.embed});
  T5Stack encoder(all, shape, "encoder", "input_ids", table);
  encoder.add_layers();
  encoder.add_norm("encoded");
  T5Stack decoder(all, shape, "decoder", "decoder_input_ids", table);
  decoder.add_layers();
  decoder.add_norm("decoded");
  all.card("head", {"decoded"}, "logits");
  if (shape.tied)
    all.operation({.name = "lm_head", .kind = TextKind::product, .parameters = {table}});
  else
    all.product("lm_head", shape.embed, shape.vocab, kNoBias);
  return all.done();
}

Description opt(const DescribedDecoderShape& shape) {
  Describer all;
  const std::string base = "model.decoder.";
  const mesh::ParamId table = all.parameter(base + "embed_tokens.weight", {shape.vocab, shape.embed});
  const mesh::ParamId places =
      all.parameter(base + "embed_positions.weight", {shape.length + 2, shape.embed});  // the first two rows are unused
  all.card("embedding", {"input_ids"}, "hidden.0");
  all.optional_reads("positions");
  all.operation({.name = "lookup", .kind = TextKind::lookup, .parameters = {table}});
  all.operation({.name = "places", .kind = TextKind::lookup, .parameters = {places}, .reads = {"positions"}});
  all.add({"lookup", "places"});
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string at = fmt::format("{}layers.{}.", base, layer), in = fmt::format("hidden.{}", layer), middle = in + ".5";
    all.card(at + "attention", {in}, middle);
    all.norm(at + "self_attn_layer_norm", shape.embed, kWithBias);
    for (const char* one : {"k_proj", "v_proj", "q_proj"})
      all.product(at + "self_attn." + one, shape.embed, shape.embed, kWithBias, {"norm"});
    all.attention({"q_proj", "k_proj", "v_proj"}, shape.heads, shape.embed, /*causal=*/true);
    all.product(at + "self_attn.out_proj", shape.embed, shape.embed, kWithBias);
    all.add({"out_proj", in});
    all.card(at + "mlp", {middle}, fmt::format("hidden.{}", layer + 1));
    all.norm(at + "final_layer_norm", shape.embed, kWithBias);
    all.product(at + "fc1", shape.embed, shape.mlp, kWithBias);
    all.elementwise("relu");
    all.product(at + "fc2", shape.mlp, shape.embed, kWithBias);
    all.add({"fc2", middle});
  }
  all.card("head", {fmt::format("hidden.{}", shape.layers)}, "logits");
  all.norm(base + "final_layer_norm", shape.embed, kWithBias);
  all.operation({.name = "lm_head", .kind = TextKind::product, .parameters = {table}});
  return all.done();
}

}  // namespace cairn::planner
