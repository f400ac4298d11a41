#include "model/families/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/json.h"
#include "model/decoder/attention_pattern.h"
#include "model/decoder/attention_pattern_json.h"
#include "model/decoder/stream_options.h"
#include "model/decoder/wiring.h"
#include "model/families/config_fields.h"
#include "model/families/expert_config.h"
#include "model/families/families.h"
#include "model/families/fla_config.h"
#include "model/families/vit_config.h"

namespace cairn::model {
namespace {

constexpr int kDepthMax = 64;

// Refuses keys that would make another function of the same weights, in any family.
void refuse_other_maths(const ConfigFields& config) {
  const Family* named = find_family(config.json().value("model_type", ""));
  const bool has_window = named && named->config.sliding_window;
  for (const char* key : {"quantization_config", "auto_map", "attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size",
                          "logits_scaling", "clip_qkv"})
    config.only(key, {});
  if (!named || !named->has_experts())
    for (const char* key : {"num_local_experts", "num_experts"}) config.only(key, {});
  for (const char* key : {"is_encoder_decoder", "add_cross_attention", "use_sliding_window", "scale_attn_by_inverse_layer_idx"})
    config.only(key, {false});
  config.only("scale_attn_weights", {true});
  config.only("partial_rotary_factor", {1, 1.0});
  if (named && named->pictures)
    config.only("hidden_act", {"gelu"});
  else
    config.only("hidden_act", {"silu", "swish"});
  config.only("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  if (const base::Json* pruned = config.find("pruned_heads"); pruned && !pruned->empty()) config.only("pruned_heads", {});
  if (const base::Json* types = config.find("layer_types")) {
    if (!types->is_array()) base::fail_corrupt(config.file(), "layer_types must be a list");
    for (const base::Json& type : *types)
      if (type != "full_attention" && !(type == "sliding_attention" && has_window))
        base::fail_input("{}: layer_types has {}: Cairn computes layers of \"full_attention\"", config.file(), base::shown(type));
  }
}

// Negative ids count as missing; they are common.
SpecialTokens special_tokens(const ConfigFields& config) {
  SpecialTokens tokens;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const base::Json* value = config.find(key);
    const auto is_id = [](const base::Json& one) { return one.is_number_integer(); };
    if (value && !is_id(*value) && !(value->is_array() && std::all_of(value->begin(), value->end(), is_id)))
      base::fail_corrupt(config.file(), fmt::format("{} = {}: must be a token id or a list of them", key, base::shown(*value)));
  }
  const auto id = [&](const char* key) -> std::optional<int64_t> {
    const base::Json* value = config.find(key);
    if (!value || !value->is_number_integer() || value->get<int64_t>() < 0) return std::nullopt;
    return value->get<int64_t>();
  };
  tokens.bos = id("bos_token_id");
  tokens.pad = id("pad_token_id");
  if (const auto one = id("eos_token_id")) tokens.eos = {*one};
  if (const base::Json* list = config.find("eos_token_id"); list && list->is_array())
    for (const base::Json& one : *list)
      if (one.is_number_integer() && one.get<int64_t>() >= 0) tokens.eos.push_back(one.get<int64_t>());
  return tokens;
}

// ---- the rotary part: rope_theta and rope_scaling, or rope_parameters, which newer versions of `transformers` write instead ----

using RopeKind = RopeScaling::Kind;

struct RopeWord {
  const char* word;
  RopeKind kind;
};
constexpr RopeWord kRopeWords[] = {{"default", RopeKind::none},
                                   {"linear", RopeKind::linear},
                                   {"dynamic", RopeKind::dynamic},
                                   {"llama3", RopeKind::llama3},
                                   {"yarn", RopeKind::yarn}};

double positive(const base::Json& object, const char* key, const std::string& file, double otherwise) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    if (otherwise > 0 || std::isnan(otherwise)) return std::isnan(otherwise) ? 0 : otherwise;
    base::fail_corrupt(file, fmt::format("rope_scaling lacks {}", key));
  }
  const double value = found->is_number() ? found->get<double>() : -1;
  if (!(value > 0) || !std::isfinite(value))
    base::fail_corrupt(file, fmt::format("rope_scaling: {} = {}: must be a number above 0", key, base::shown(*found)));
  return value;
}

constexpr double kOriginalMax = 1e12;
constexpr double kRequired = 0, kOptional = std::numeric_limits<double>::quiet_NaN();

RopeScaling read_scaling(const base::Json& json, const std::string& file) {
  const auto type = json.contains("rope_type") ? json.find("rope_type") : json.find("type");
  RopeScaling s;
  const RopeWord* word = nullptr;
  for (const RopeWord& one : kRopeWords)
    if (type != json.end() && *type == one.word) word = &one;
  if (!word && type != json.end())
    base::fail_input("{}: rope_scaling of type {}: Cairn reads default, linear, dynamic, llama3 and yarn", file, base::shown(*type));
  s.kind = word ? word->kind : RopeKind::none;
  if (s.kind == RopeKind::none) return s;
  s.factor = positive(json, "factor", file, kRequired);
  const double original = positive(json, "original_max_position_embeddings", file, s.kind == RopeKind::llama3 ? kRequired : kOptional);
  if (original > kOriginalMax)
    base::fail_corrupt(file, fmt::format("rope_scaling: original_max_position_embeddings = {}: at most {}", original, kOriginalMax));
  s.original_length = static_cast<int64_t>(original);
  if (s.kind == RopeKind::llama3) {
    s.low_freq_factor = positive(json, "low_freq_factor", file, kRequired);
    s.high_freq_factor = positive(json, "high_freq_factor", file, kRequired);
    if (s.high_freq_factor <= s.low_freq_factor) base::fail_corrupt(file, "rope_scaling: high_freq_factor must be above low_freq_factor");
  }
  if (s.kind == RopeKind::yarn) {
    s.beta_fast = positive(json, "beta_fast", file, 32);
    s.beta_slow = positive(json, "beta_slow", file, 1);
    s.attention_factor = positive(json, "attention_factor", file, kOptional);
    s.mscale = positive(json, "mscale", file, kOptional);
    s.mscale_all_dim = positive(json, "mscale_all_dim", file, kOptional);
    s.truncate = !(json.contains("truncate") && json["truncate"] == false);
  }
  return s;
}

void read_rope(DecoderShape& shape, const base::Json& config, const std::string& file) {
  const auto object = [&](const char* key) -> const base::Json* {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) return nullptr;
    if (!found->is_object()) base::fail_corrupt(file, fmt::format("{} must be an object", key));
    return &*found;
  };
  const base::Json* parameters = object("rope_parameters");
  const base::Json* scaling = parameters ? parameters : object("rope_scaling");
  if (scaling) shape.rope_scaling = read_scaling(*scaling, file);
  const bool inside = parameters && parameters->contains("rope_theta");
  shape.rope_theta = positive(inside ? *parameters : config, "rope_theta", file, family(shape.family).config.default_rope_theta);
  if (parameters && parameters->contains("partial_rotary_factor") && (*parameters)["partial_rotary_factor"] != 1)
    base::fail_input("{}: partial_rotary_factor = {}: Cairn rotates whole heads", file,
                     base::shown((*parameters)["partial_rotary_factor"]));
}

void write_rope(base::OrderedJson& config, const DecoderShape& shape) {
  config["rope_theta"] = shape.rope_theta;
  const RopeScaling& s = shape.rope_scaling;
  if (s.kind == RopeKind::none) {
    config["rope_scaling"] = nullptr;
    return;
  }
  base::OrderedJson scaling;
  for (const RopeWord& one : kRopeWords)
    if (one.kind == s.kind) scaling["rope_type"] = one.word;
  scaling["factor"] = s.factor;
  if (s.original_length > 0) scaling["original_max_position_embeddings"] = s.original_length;
  if (s.kind == RopeKind::llama3) {
    scaling["low_freq_factor"] = s.low_freq_factor;
    scaling["high_freq_factor"] = s.high_freq_factor;
  }
  if (s.kind == RopeKind::yarn) {
    scaling["beta_fast"] = s.beta_fast;
    scaling["beta_slow"] = s.beta_slow;
    if (s.attention_factor > 0) scaling["attention_factor"] = s.attention_factor;
    if (s.mscale > 0) scaling["mscale"] = s.mscale;
    if (s.mscale_all_dim > 0) scaling["mscale_all_dim"] = s.mscale_all_dim;
    if (!s.truncate) scaling["truncate"] = false;
  }
  config["rope_scaling"] = scaling;
}

// ---- the families ----

void read_gpt2(DecoderShape& shape, const ConfigFields& config) {
  shape.embed = config.size("n_embd", kWidthMax);
  shape.layers = config.size("n_layer", kLayersMax);
  shape.heads = shape.kv_heads = config.size("n_head", kHeadsMax);
  shape.length = config.size("n_positions", kVocabMax, 1024);  // each has a row of a table
  shape.mlp = config.size("n_inner", kWidthMax, 4 * shape.embed);
  shape.norm_eps = config.number("layer_norm_epsilon", 1, 1e-5);
  shape.tied = config.flag("tie_word_embeddings", true);
  if (shape.embed % shape.heads != 0)
    base::fail_corrupt(config.file(), fmt::format("n_embd = {} is no multiple of n_head = {}", shape.embed, shape.heads));
  shape.head_dim = shape.embed / shape.heads;
}

void read_llama_like(DecoderShape& shape, const ConfigFields& config) {
  const FamilyConfig& style = family(shape.family).config;
  shape.embed = config.size("hidden_size", kWidthMax);
  shape.mlp = config.size("intermediate_size", kWidthMax);
  shape.layers = config.size("num_hidden_layers", kLayersMax);
  shape.heads = config.size("num_attention_heads", kHeadsMax);
  if (!config.find("head_dim") && style.default_head_dim == 0 && shape.embed % shape.heads != 0)
    base::fail_corrupt(config.file(), fmt::format("hidden_size = {} is no multiple of num_attention_heads = {}, and there is no head_dim",
                                                  shape.embed, shape.heads));
  shape.kv_heads = config.size("num_key_value_heads", kHeadsMax, style.default_kv_heads > 0 ? style.default_kv_heads : shape.heads);
  shape.head_dim = config.size("head_dim", kHeadsMax,
                               style.default_head_dim > 0 ? style.default_head_dim : std::max<int64_t>(1, shape.embed / shape.heads));
  shape.length = config.size("max_position_embeddings", kLengthMax, style.default_length);
  shape.norm_eps = config.number("rms_norm_eps", 1, style.default_norm_eps);
  shape.tied = config.flag("tie_word_embeddings", false);
  if (style.attention_bias) shape.qkv_bias = shape.out_bias = config.flag("attention_bias", false);
  if (style.qkv_bias) shape.qkv_bias = config.flag("qkv_bias", true);
  if (style.mlp_bias) shape.mlp_bias = config.flag("mlp_bias", false);
  if (style.sliding_window) {
    const bool none = !config.find("sliding_window") && (style.default_window == 0 || config.json().contains("sliding_window"));  // or null
    shape.window = none ? 0 : config.size("sliding_window", kLengthMax, style.default_window);
  }
  if (family(shape.family).has_experts()) read_experts(shape, config);
  read_rope(shape, config.json(), config.file());
  if (shape.heads % shape.kv_heads != 0)
    base::fail_corrupt(config.file(),
                       fmt::format("num_attention_heads = {} is no multiple of num_key_value_heads = {}", shape.heads, shape.kv_heads));
  if (shape.head_dim % 2 != 0)
    base::fail_corrupt(config.file(), fmt::format("heads of width {}: rotary positions need an even one", shape.head_dim));
}

void write_gpt2(base::OrderedJson& config, const DecoderShape& shape) {
  config["n_embd"] = shape.embed;
  config["n_layer"] = shape.layers;
  config["n_head"] = shape.heads;
  config["n_positions"] = shape.length;
  config["n_ctx"] = shape.length;
  config["n_inner"] = shape.mlp;
  config["layer_norm_epsilon"] = shape.norm_eps;
  config["activation_function"] = "gelu_new";
}

void write_llama_like(base::OrderedJson& config, const DecoderShape& shape) {
  const FamilyConfig& style = family(shape.family).config;
  config["hidden_size"] = shape.embed;
  config["intermediate_size"] = shape.mlp;
  config["num_hidden_layers"] = shape.layers;
  config["num_attention_heads"] = shape.heads;
  config["num_key_value_heads"] = shape.kv_heads;
  config["head_dim"] = shape.head_dim;
  config["max_position_embeddings"] = shape.length;
  config["rms_norm_eps"] = shape.norm_eps;
  write_rope(config, shape);
  config["hidden_act"] = "silu";
  if (style.attention_bias) config["attention_bias"] = shape.qkv_bias;
  if (style.qkv_bias) config["qkv_bias"] = shape.qkv_bias;
  if (style.mlp_bias) config["mlp_bias"] = shape.mlp_bias;
  if (style.sliding_window) config["sliding_window"] = shape.window > 0 ? base::OrderedJson(shape.window) : base::OrderedJson(nullptr);
  if (style.use_sliding_window) config["use_sliding_window"] = false;
  if (shape.experts.count > 0) write_experts(config, shape);
}

void read_family(DecoderShape& shape, const ConfigFields& config) {
  switch (family(shape.family).config.keys) {
    case FamilyConfig::Keys::gpt2:
      return read_gpt2(shape, config);
    case FamilyConfig::Keys::fla:
      return read_fla(shape, config);
    case FamilyConfig::Keys::vit:
      return read_vit(shape, config);
    case FamilyConfig::Keys::llama:
      return read_llama_like(shape, config);
  }
}

void write_family(base::OrderedJson& config, const DecoderShape& shape) {
  switch (family(shape.family).config.keys) {
    case FamilyConfig::Keys::gpt2:
      return write_gpt2(config, shape);
    case FamilyConfig::Keys::fla:
      return write_fla(config, shape);
    case FamilyConfig::Keys::vit:
      return write_vit(config, shape);
    case FamilyConfig::Keys::llama:
      return write_llama_like(config, shape);
  }
}

// Published models with parallel streams are "Qwen2ParScaleForCausalLM".
std::string architecture_of(const Family& kind, const DecoderShape& shape) {
  if (shape.streams.count == 1) return kind.architecture;
  const size_t task = kind.architecture.find("ForCausalLM");
  return task == std::string::npos ? "ParScale" + kind.architecture : std::string(kind.architecture).insert(task, "ParScale");
}

void read_streams(DecoderShape& shape, const ConfigFields& config) {
  StreamOptions found{.streams = config.size("parscale_n", kStreamsMax),
                      .prefix_tokens = config.size("parscale_n_tokens", kPrefixTokensMax),
                      .smoothing = StreamOptions{}.smoothing};
  const base::Json* smoothing = config.find("parscale_attn_smooth");
  found.smoothing = smoothing && *smoothing == 0 ? 0 : config.number("parscale_attn_smooth", 1, found.smoothing);
  if (found.streams == 1) found = {};  // the plain model under another name
  set_streams(shape, found);
}

// Linear attention with a constant decay or none is another function than fla's, so it gets another model_type.
std::string decay_suffix(const DecoderShape& shape) {
  return shape.linear.decay == LinearAttentionShape::Decay::gated
             ? ""
             : fmt::format("_{}_decay", base::enum_name(kDecayNames, shape.linear.decay));
}

// Fields that are not true of what is written: the weights' type and place of the file that was read, and the other spelling of the rotary
// keys, which are written as rope_theta and rope_scaling.
constexpr const char* kNotKept[] = {"dtype", "torch_dtype", "_name_or_path", "rope_parameters"};

// Fields that are written with a default and have no part in what Cairn computes: the file's value is kept.
bool is_free(const FamilyConfig& style, const std::string& key) {
  return key == "initializer_range" || key == "use_cache" || key == "output_router_logits" ||
         std::any_of(style.dropouts.begin(), style.dropouts.end(), [&](const auto& one) { return one.first == key; });
}

// What the file has and a config.json of this shape would not have.
std::vector<std::pair<std::string, std::string>> other_fields_of(const base::Json& file, const DecoderShape& shape) {
  const FamilyConfig& style = family(shape.family).config;
  const base::Json own = base::parse_json(format_config(shape));
  std::vector<std::pair<std::string, std::string>> kept;
  for (const auto& [key, value] : file.items()) {
    if (std::find(std::begin(kNotKept), std::end(kNotKept), key) != std::end(kNotKept)) continue;
    if (!own.contains(key) || (is_free(style, key) && own[key] != value)) kept.emplace_back(key, base::compact(value));
  }
  for (const auto& [key, missing] : style.dropouts)
    if (missing > 0 && !file.contains(key)) kept.emplace_back(key, base::compact(base::Json(missing)));
  std::sort(kept.begin(), kept.end());
  return kept;
}

}  // namespace

std::vector<int64_t> layer_list(const ConfigFields& config, const char* key, int64_t layers) {
  const base::Json* list = config.find(key);
  if (!list || !list->is_array() || list->size() > static_cast<size_t>(layers))
    base::fail_corrupt(config.file(), fmt::format("{} must be a list of layers", key));
  std::vector<int64_t> numbers;
  for (const base::Json& one : *list) {
    if (!one.is_number_integer() || one.get<int64_t>() < 0 || one.get<int64_t>() >= layers ||
        (!numbers.empty() && one.get<int64_t>() <= numbers.back()))
      base::fail_corrupt(config.file(), fmt::format("{} has {}: layers from 0 to {}, in order", key, base::shown(one), layers - 1));
    numbers.push_back(one.get<int64_t>());
  }
  return numbers;
}

std::string requested_dropout(const DecoderShape& shape) {
  std::string text;
  for (const auto& [key, missing] : family(shape.family).config.dropouts)
    for (const auto& [kept, value] : shape.other_fields)
      if (const base::Json number = kept == key ? base::parse_json(value) : base::Json(); number.is_number() && number > 0)
        text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", key, value);
  return text;
}

namespace {

void write_tokens(base::OrderedJson& config, const DecoderShape& shape) {
  config["tie_word_embeddings"] = shape.tied;
  const auto id = [](const std::optional<int64_t>& token) { return token ? base::OrderedJson(*token) : base::OrderedJson(nullptr); };
  config["bos_token_id"] = id(shape.tokens.bos);
  if (shape.tokens.eos.size() == 1) {
    config["eos_token_id"] = shape.tokens.eos[0];
  } else {
    config["eos_token_id"] = shape.tokens.eos.empty() ? base::OrderedJson(nullptr) : base::OrderedJson(shape.tokens.eos);
  }
  if (shape.tokens.pad) config["pad_token_id"] = *shape.tokens.pad;
}

}  // namespace

std::string format_config(const DecoderShape& shape, const std::string& dtype) {
  base::OrderedJson config;
  // Another wiring is another function of the same parameters, so it gets another architecture and model_type.
  const bool standard = is_standard(shape.residual);
  const Family& kind = family(shape.family);
  config["architectures"].push_back(std::string(shape.pattern ? kPatternPrefix : "") + architecture_prefix(shape.residual) +
                                    architecture_of(kind, shape));
  config["model_type"] = shape.family + decay_suffix(shape) + (standard ? "" : "_" + shape.residual) +
                         std::string(shape.pattern ? kPatternSuffix : "") + std::string(shape.experts.biased ? kBiasedSuffix : "") +
                         std::string(shape.streams.count > 1 ? kStreamsSuffix : "");
  if (shape.pattern) config["sparse_attention"] = format_pattern(shape);
  if (shape.streams.count > 1) {
    config["parscale_n"] = shape.streams.count;
    config["parscale_n_tokens"] = shape.streams.prefix_tokens;
    config["parscale_attn_smooth"] = shape.streams.smoothing;
  }
  if (is_ladder(shape.residual)) config["ladder_layers"] = shape.ladder_layers;
  if (!kind.pictures) config["vocab_size"] = shape.vocab;
  write_family(config, shape);
  for (const auto& [key, missing] : kind.config.dropouts) config[key] = 0.0;  // a new model has none
  if (!kind.pictures) write_tokens(config, shape);
  config["initializer_range"] = 0.02;
  if (!kind.pictures) config["use_cache"] = true;
  config["torch_dtype"] = dtype;
  for (const auto& [key, value] : shape.other_fields) config[key] = base::parse_ordered_json(value);
  return base::pretty(config) + "\n";
}

DecoderShape parse_config(const std::string& text, const std::string& file) {
  const base::GuardedJson parsed = base::parse_json_guarded(text, kDepthMax);
  if (!parsed.trouble.empty()) base::fail_corrupt(file, parsed.trouble);
  if (!parsed.value.is_object()) base::fail_corrupt(file, "not a JSON object");
  const ConfigFields config(parsed.value, file);
  const base::Json* type = config.find("model_type");
  std::vector<std::string> known = family_names();
  for (const Family& one : picture_families()) known.push_back(one.name);
  std::string named = type && type->is_string() ? type->get<std::string>() : "";
  DecoderShape shape;
  const bool streams = named.ends_with(kStreamsSuffix);
  if (streams) named.resize(named.size() - kStreamsSuffix.size());
  const bool biased = named.ends_with(kBiasedSuffix);
  if (biased) named.resize(named.size() - kBiasedSuffix.size());
  const bool sparse = named.ends_with(kPatternSuffix);
  if (sparse) named.resize(named.size() - kPatternSuffix.size());
  for (const std::string& wiring : kWirings)
    if (named.ends_with("_" + wiring)) shape.residual = wiring, named.resize(named.size() - wiring.size() - 1);
  for (const auto decay : {LinearAttentionShape::Decay::constant, LinearAttentionShape::Decay::none}) {
    shape.linear.decay = decay;
    if (named.ends_with(decay_suffix(shape))) {
      named.resize(named.size() - decay_suffix(shape).size());
      break;
    }
    shape.linear.decay = LinearAttentionShape::Decay::gated;
  }
  const Family* found = find_family(named);
  if (!found || (biased && !found->has_experts()) || (!found->linear_attention && shape.linear.decay != LinearAttentionShape::Decay::gated))
    base::fail_input("{}: model_type is {}; Cairn reads {}", file, type ? base::shown(*type) : "missing", fmt::join(known, ", "));
  shape.family = named;
  refuse_other_maths(config);
  const Family& kind = family(shape.family);
  shape.qkv_bias = kind.qkv_bias, shape.out_bias = kind.out_bias, shape.mlp_bias = kind.mlp_bias;
  if (!kind.pictures) shape.vocab = config.size("vocab_size", kVocabMax), shape.tokens = special_tokens(config);
  shape.experts.biased = biased;
  read_family(shape, config);
  if (is_ladder(shape.residual)) shape.ladder_layers = layer_list(config, "ladder_layers", shape.layers);
  if (sparse) {
    const base::Json* pattern = config.find("sparse_attention");
    if (!pattern) base::fail_corrupt(file, "sparse_attention is missing");
    parse_pattern(shape, *pattern, file);
  }
  if (streams) read_streams(shape, config);
  shape.other_fields = other_fields_of(parsed.value, shape);
  return shape;
}

}  // namespace cairn::model
