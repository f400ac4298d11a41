#include "model/families/fla_config.h"

#include <algorithm>

#include "model/families/config_fields.h"
#include "model/families/families.h"

namespace cairn::model {
namespace {

// Refuses keys that would make another function of the same weights, in the family of flash-linear-attention.
void refuse_other_linear_maths(const ConfigFields& config) {
  for (const char* key : {"feature_map", "clamp_min"}) config.only(key, {});
  for (const char* key : {"use_short_conv", "use_gv"}) config.only(key, {false});
  for (const char* key : {"use_output_gate", "elementwise_affine", "use_gk", "fuse_norm"}) config.only(key, {true});
}

// The width of a head from "expand_k" or "expand_v".
int64_t expanded(const ConfigFields& config, const char* key, double otherwise, const DecoderShape& shape) {
  const auto width = static_cast<int64_t>(static_cast<double>(shape.embed) * config.number(key, 64, otherwise));
  if (width < 1 || width % shape.linear.heads != 0)
    base::fail_corrupt(config.file(), fmt::format("{} = {}: a width of {} is no multiple of num_heads = {}", key,
                                                  config.number(key, 64, otherwise), width, shape.linear.heads));
  return width / shape.linear.heads;
}

}  // namespace

void read_fla(DecoderShape& shape, const ConfigFields& config) {
  refuse_other_linear_maths(config);
  shape.embed = config.size("hidden_size", kWidthMax);
  shape.layers = config.size("num_hidden_layers", kLayersMax);
  shape.linear.heads = config.size("num_heads", kHeadsMax, 4);
  config.only("num_kv_heads", {shape.linear.heads});
  shape.linear.key_dim = expanded(config, "expand_k", 0.5, shape), shape.linear.value_dim = expanded(config, "expand_v", 1, shape);
  // hidden_ratio gives a SwiGLU of about as many parameters as an MLP of that ratio, in multiples of 256.
  const auto wanted = static_cast<int64_t>(static_cast<double>(shape.embed) * config.number("hidden_ratio", 64, 4) * 2 / 3);
  shape.mlp = config.size("intermediate_size", kWidthMax, std::max<int64_t>(1, (wanted + 255) / 256) * 256);
  shape.length = config.size("max_position_embeddings", kLengthMax, family(shape.family).config.default_length);
  shape.norm_eps = config.number("norm_eps", 1, 1e-6);
  shape.tied = config.flag("tie_word_embeddings", false);
  shape.heads = shape.kv_heads = shape.linear.heads;
  if (const base::Json* attention = config.find("attn")) {
    if (!attention->is_object()) base::fail_corrupt(config.file(), "attn must be an object");
    const ConfigFields own(*attention, config.file());
    shape.heads = own.size("num_heads", kHeadsMax);
    shape.kv_heads = own.size("num_kv_heads", kHeadsMax, shape.heads);
    shape.qkv_bias = own.flag("qkv_bias", false);
    shape.window = own.find("window_size") ? own.size("window_size", kLengthMax) : 0;
    shape.rope_theta = own.number("rope_theta", 1e12, 10000);
    shape.linear.softmax_layers = layer_list(own, "layers", shape.layers);
  }
  if (shape.embed % shape.heads != 0 || shape.heads % shape.kv_heads != 0)
    base::fail_corrupt(config.file(),
                       fmt::format("attn has {} heads and {} key heads for hidden_size = {}", shape.heads, shape.kv_heads, shape.embed));
  shape.head_dim = shape.embed / shape.heads;
  if (!shape.linear.softmax_layers.empty() && shape.head_dim % 2 != 0)
    base::fail_corrupt(config.file(), fmt::format("heads of width {}: rotary positions need an even one", shape.head_dim));
}

void write_fla(base::OrderedJson& config, const DecoderShape& shape) {
  const auto expansion = [&](int64_t width) { return static_cast<double>(width * shape.linear.heads) / static_cast<double>(shape.embed); };
  config["hidden_size"] = shape.embed;
  config["expand_k"] = expansion(shape.linear.key_dim);
  config["expand_v"] = expansion(shape.linear.value_dim);
  config["intermediate_size"] = shape.mlp;
  config["num_hidden_layers"] = shape.layers;
  config["num_heads"] = shape.linear.heads;
  for (const char* key : {"num_kv_heads", "feature_map", "clamp_min"}) config[key] = nullptr;
  config["attn_mode"] = "chunk";
  for (const char* key : {"use_short_conv", "use_gv"}) config[key] = false;
  for (const char* key : {"use_output_gate", "elementwise_affine", "use_gk", "fuse_norm", "fuse_swiglu"}) config[key] = true;
  config["hidden_act"] = "swish";
  config["max_position_embeddings"] = shape.length;
  config["norm_eps"] = shape.norm_eps;
  config["attn"] = nullptr;
  if (shape.linear.softmax_layers.empty()) return;
  base::OrderedJson attention;
  attention["layers"] = shape.linear.softmax_layers;
  attention["num_heads"] = shape.heads;
  attention["num_kv_heads"] = shape.kv_heads;
  attention["qkv_bias"] = shape.qkv_bias;
  attention["window_size"] = shape.window > 0 ? base::OrderedJson(shape.window) : base::OrderedJson(nullptr);
  attention["rope_theta"] = shape.rope_theta;
  config["attn"] = std::move(attention);
}

}  // namespace cairn::model
