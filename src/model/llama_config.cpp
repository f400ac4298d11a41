#include "model/llama_config.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "model/llama.h"

namespace cairn::model {
namespace {

constexpr int64_t kSizeMax = int64_t{1} << 32;  // far beyond any model; keeps products of two from overflowing

int64_t size_of(const base::Json& config, const char* key, const std::string& file, std::optional<int64_t> otherwise = std::nullopt) {
  if (!config.contains(key) || config[key].is_null()) {
    if (otherwise) return *otherwise;
    throw Error(Error::Kind::corrupt_file, fmt::format("{}: {} is missing", file, key));
  }
  if (!config[key].is_number_integer() || config[key].get<int64_t>() < 1 || config[key].get<int64_t>() > kSizeMax)
    throw Error(Error::Kind::corrupt_file,
                fmt::format("{}: {} = {}: must be a whole number of at least 1", file, key, base::compact(config[key])));
  return config[key].get<int64_t>();
}

double number_of(const base::Json& config, const char* key, double otherwise) {
  return config.contains(key) && config[key].is_number() ? config[key].get<double>() : otherwise;
}

}  // namespace

std::string llama_config_json(const LlamaShape& shape) {
  base::OrderedJson config;
  config["architectures"].push_back("LlamaForCausalLM");
  config["model_type"] = "llama";
  config["vocab_size"] = shape.vocab;
  config["hidden_size"] = shape.embed;
  config["intermediate_size"] = shape.mlp;
  config["num_hidden_layers"] = shape.layers;
  config["num_attention_heads"] = shape.heads;
  config["num_key_value_heads"] = shape.kv_heads;
  config["head_dim"] = shape.head_dim;
  config["max_position_embeddings"] = shape.length;
  config["rms_norm_eps"] = shape.norm_eps;
  config["rope_theta"] = shape.rope_theta;
  config["tie_word_embeddings"] = shape.tied;
  config["hidden_act"] = "silu";
  config["attention_bias"] = false;
  config["mlp_bias"] = false;
  config["torch_dtype"] = "float32";
  return base::pretty(config) + "\n";
}

LlamaShape parse_llama_config(const std::string& json, const std::string& file) {
  const base::Json config = base::parse_json(json);
  if (!config.is_object()) throw Error(Error::Kind::corrupt_file, fmt::format("{}: not a JSON object", file));
  if (config.value("model_type", "") != "llama")
    base::fail_input("{}: model_type is {}; llama is what Cairn reads so far", file, config.value("model_type", "missing"));
  LlamaShape shape;
  shape.vocab = size_of(config, "vocab_size", file);
  shape.embed = size_of(config, "hidden_size", file);
  shape.mlp = size_of(config, "intermediate_size", file);
  shape.layers = size_of(config, "num_hidden_layers", file);
  shape.heads = size_of(config, "num_attention_heads", file);
  shape.kv_heads = size_of(config, "num_key_value_heads", file, shape.heads);
  shape.head_dim = size_of(config, "head_dim", file, shape.embed / shape.heads);
  shape.length = size_of(config, "max_position_embeddings", file, 2048);
  shape.norm_eps = number_of(config, "rms_norm_eps", 1e-6);
  shape.rope_theta = number_of(config, "rope_theta", 10000);
  shape.tied =
      config.contains("tie_word_embeddings") && config["tie_word_embeddings"].is_boolean() && config["tie_word_embeddings"].get<bool>();
  if (shape.heads % shape.kv_heads != 0 || shape.head_dim % 2 != 0)
    throw Error(Error::Kind::corrupt_file, fmt::format("{}: {} heads, {} kv heads of width {} cannot work together", file, shape.heads,
                                                       shape.kv_heads, shape.head_dim));
  return shape;
}

}  // namespace cairn::model
