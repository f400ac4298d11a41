// ViT and a piece of a U-Net.

#include <fmt/format.h>

#include "planner/graph/described_models.h"
#include "planner/graph/describer.h"

namespace cairn::planner {
namespace {

using ImageKind = model::BlockOp::Kind;
constexpr Describer::Bias kPlain = Describer::Bias::none, kBiased = Describer::Bias::one;

// Images are independent of each other in every operation.
Description of_pictures(Describer& all) {
  Description done = all.done();
  for (model::Card& card : done.cards)
    for (model::BlockOp& operation : card.operations) operation.by_sample = operation.kind == ImageKind::other;
  return done;
}

// A transformer block over "picture", whose second attention reads "text".
void add_transformer_block(Describer& all, const std::string& at, const DiffusionShape& shape) {
  const int64_t width = shape.channels;
  const auto attention = [&](const std::string& name, const std::string& norm, const std::string& reads, const std::string& writes) {
    const bool over_text = name == "attn2";
    all.card(at + name, over_text ? std::vector<std::string>{reads, "text"} : std::vector{reads}, writes);
    all.norm(at + norm, width, kBiased);
    all.product(at + name + ".to_q", width, width, kPlain, {"norm"});
    for (const char* one : {".to_k", ".to_v"})
      all.product(at + name + one, over_text ? shape.text : width, width, kPlain, {over_text ? "text" : "norm"});
    all.attention({"to_q", "to_k", "to_v"}, shape.heads, width, /*causal=*/false);
    all.product(at + name + ".to_out.0", width, width, kBiased);
    all.add({"0", reads});
  };
  attention("attn1", "norm1", "tokens.0", "tokens.1");
  attention("attn2", "norm2", "tokens.1", "tokens.2");
  all.card(at + "ff", {"tokens.2"}, "tokens.3");
  all.norm(at + "norm3", width, kBiased);
  all.product(at + "ff.net.0.proj", width, 8 * width, kBiased);  // value and gate, stacked
  all.operation({.name = "geglu", .kind = ImageKind::multiply, .width = 4 * width});
  all.product(at + "ff.net.2", 4 * width, width, kBiased);
  all.add({"2", "tokens.2"});
}

}  // namespace

Description vit(const ImageShape& shape) {
  Describer all;
  const std::string base = "vit.embeddings.";
  all.card("embedding", {"pixel_values"}, "hidden.0");
  all.product(base + "patch_embeddings.projection", shape.channels * shape.patch * shape.patch, shape.embed, kBiased);
  all.operation({.name = "class_token",
                 .parameters = {all.parameter(base + "cls_token", {1, 1, shape.embed}),
                                all.parameter(base + "position_embeddings", {1, shape.patches + 1, shape.embed})}});
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string at = fmt::format("vit.encoder.layer.{}.", layer), in = fmt::format("hidden.{}", layer), middle = in + ".5";
    all.card(at + "attention", {in}, middle);
    all.norm(at + "layernorm_before", shape.embed, kBiased);
    for (const char* one : {"query", "key", "value"})
      all.product(at + "attention.attention." + one, shape.embed, shape.embed, kBiased, {"norm"});
    all.attention({"query", "key", "value"}, shape.heads, shape.embed, /*causal=*/false);
    all.product(at + "attention.output.dense", shape.embed, shape.embed, kBiased);
    all.add({"dense", in});
    all.card(at + "mlp", {middle}, fmt::format("hidden.{}", layer + 1));
    all.norm(at + "layernorm_after", shape.embed, kBiased);
    all.product(at + "intermediate.dense", shape.embed, shape.mlp, kBiased, {}, "intermediate");
    all.elementwise("gelu");
    all.product(at + "output.dense", shape.mlp, shape.embed, kBiased, {}, "output");
    all.add({"output", middle});
  }
  all.card("head", {fmt::format("hidden.{}", shape.layers)}, "logits");
  all.norm("vit.layernorm", shape.embed, kBiased);
  all.operation({.name = "first_token", .width = shape.embed});
  all.product("classifier", shape.embed, shape.classes, kBiased);
  return of_pictures(all);
}

Description unet_block(const DiffusionShape& shape) {
  Describer all;
  const int64_t width = shape.channels;
  const std::string resnet = "down_blocks.0.resnets.0.", attention = "down_blocks.0.attentions.0.";
  // Convolutions and the norms over groups of channels before them are kept on every rank.
  const auto convolution = [&](const std::string& name, const std::string& norm) {
    all.operation(
        {.name = name,
         .parameters = {all.parameter(resnet + norm + ".weight", {width}), all.parameter(resnet + norm + ".bias", {width}),
                        all.parameter(resnet + name + ".weight", {width, width, 3, 3}), all.parameter(resnet + name + ".bias", {width})},
         .flops_per_token = 18.0 * static_cast<double>(width * width),
         .width = width});
  };
  all.card("resnet", {"picture", "time"}, "picture.1");
  convolution("conv1", "norm1");
  all.operation({.name = "silu", .kind = ImageKind::elementwise, .reads = {"time"}, .width = shape.time});
  all.product(resnet + "time_emb_proj", shape.time, width, kBiased, {"silu"});
  all.operation({.name = "add_time", .kind = ImageKind::add, .reads = {"conv1", "time_emb_proj"}});
  convolution("conv2", "norm2");
  all.add({"conv2", "picture"});
  all.card("enter", {"picture.1"}, "tokens.0");
  all.operation({.name = "group_norm",
                 .parameters = {all.parameter(attention + "norm.weight", {width}), all.parameter(attention + "norm.bias", {width})},
                 .width = width});
  all.product(attention + "proj_in", width, width, kBiased);
  add_transformer_block(all, attention + "transformer_blocks.0.", shape);
  all.card("leave", {"tokens.3", "picture.1"}, "picture.2");
  all.product(attention + "proj_out", width, width, kBiased);
  all.add({"proj_out", "picture.1"});
  return of_pictures(all);
}

}  // namespace cairn::planner
