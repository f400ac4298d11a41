#include "model/families/rope_config.h"

#include <cmath>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::model {
namespace {

using Kind = RopeScaling::Kind;

struct RopeWord {
  const char* word;
  Kind kind;
};
constexpr RopeWord kWords[] = {
    {"default", Kind::none}, {"linear", Kind::linear}, {"dynamic", Kind::dynamic}, {"llama3", Kind::llama3}, {"yarn", Kind::yarn}};

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
  for (const RopeWord& one : kWords)
    if (type != json.end() && *type == one.word) word = &one;
  if (!word && type != json.end())
    base::fail_input("{}: rope_scaling of type {}: Cairn reads default, linear, dynamic, llama3 and yarn", file, base::shown(*type));
  s.kind = word ? word->kind : Kind::none;
  if (s.kind == Kind::none) return s;
  s.factor = positive(json, "factor", file, kRequired);
  const double original = positive(json, "original_max_position_embeddings", file, s.kind == Kind::llama3 ? kRequired : kOptional);
  if (original > kOriginalMax)
    base::fail_corrupt(file, fmt::format("rope_scaling: original_max_position_embeddings = {}: at most {}", original, kOriginalMax));
  s.original_length = static_cast<int64_t>(original);
  if (s.kind == Kind::llama3) {
    s.low_freq_factor = positive(json, "low_freq_factor", file, kRequired);
    s.high_freq_factor = positive(json, "high_freq_factor", file, kRequired);
    if (s.high_freq_factor <= s.low_freq_factor) base::fail_corrupt(file, "rope_scaling: high_freq_factor must be above low_freq_factor");
  }
  if (s.kind == Kind::yarn) {
    s.beta_fast = positive(json, "beta_fast", file, 32);
    s.beta_slow = positive(json, "beta_slow", file, 1);
    s.attention_factor = positive(json, "attention_factor", file, kOptional);
    s.mscale = positive(json, "mscale", file, kOptional);
    s.mscale_all_dim = positive(json, "mscale_all_dim", file, kOptional);
    s.truncate = !(json.contains("truncate") && json["truncate"] == false);
  }
  return s;
}

}  // namespace

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
  shape.rope_theta = positive(inside ? *parameters : config, "rope_theta", file, 10000);
  if (parameters && parameters->contains("partial_rotary_factor") && (*parameters)["partial_rotary_factor"] != 1)
    base::fail_input("{}: partial_rotary_factor = {}: Cairn rotates whole heads", file,
                     base::shown((*parameters)["partial_rotary_factor"]));
}

void write_rope(base::OrderedJson& config, const DecoderShape& shape) {
  config["rope_theta"] = shape.rope_theta;
  const RopeScaling& s = shape.rope_scaling;
  if (s.kind == Kind::none) {
    config["rope_scaling"] = nullptr;
    return;
  }
  base::OrderedJson scaling;
  for (const RopeWord& one : kWords)
    if (one.kind == s.kind) scaling["rope_type"] = one.word;
  scaling["factor"] = s.factor;
  if (s.original_length > 0) scaling["original_max_position_embeddings"] = s.original_length;
  if (s.kind == Kind::llama3) {
    scaling["low_freq_factor"] = s.low_freq_factor;
    scaling["high_freq_factor"] = s.high_freq_factor;
  }
  if (s.kind == Kind::yarn) {
    scaling["beta_fast"] = s.beta_fast;
    scaling["beta_slow"] = s.beta_slow;
    if (s.attention_factor > 0) scaling["attention_factor"] = s.attention_factor;
    if (s.mscale > 0) scaling["mscale"] = s.mscale;
    if (s.mscale_all_dim > 0) scaling["mscale_all_dim"] = s.mscale_all_dim;
    if (!s.truncate) scaling["truncate"] = false;
  }
  config["rope_scaling"] = scaling;
}

}  // namespace cairn::model
