#include "model/families/vit_config.h"

#include <charconv>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::model {
namespace {

constexpr int64_t kSideMax = 1 << 14, kChannelsMax = 1 << 12, kClassesMax = 1 << 24, kClassesByDefault = 2;

// id2label is an object from "0", "1", ... to names.
std::vector<std::string> labels_of(const ConfigFields& config) {
  const base::Json* names = config.find("id2label");
  if (!names) return {};
  if (!names->is_object() || names->empty() || names->size() > static_cast<size_t>(kClassesMax))
    base::fail_corrupt(config.file(), "id2label must be an object with a name for each class");
  std::vector<std::string> labels(names->size());
  std::vector<bool> seen(names->size(), false);
  for (const auto& [number, name] : names->items()) {
    size_t at = 0;
    const auto [after, error] = std::from_chars(number.data(), number.data() + number.size(), at);
    const bool whole = error == std::errc() && after == number.data() + number.size();
    if (!whole || at >= labels.size() || seen[at] || !name.is_string())
      base::fail_corrupt(config.file(), fmt::format("id2label has {}: {}: classes are numbered from 0 to {}", number, base::shown(name),
                                                    labels.size() - 1));
    labels[at] = name.get<std::string>();
    seen[at] = true;
  }
  return labels;
}

// The names that `transformers` gives to classes without a name.
std::string default_label(size_t number) { return fmt::format("LABEL_{}", number); }

bool are_default(const std::vector<std::string>& labels) {
  for (size_t i = 0; i < labels.size(); ++i)
    if (labels[i] != default_label(i)) return false;
  return true;
}

}  // namespace

void read_vit(DecoderShape& shape, const ConfigFields& config) {
  shape.embed = config.size("hidden_size", kWidthMax, 768);
  shape.layers = config.size("num_hidden_layers", kLayersMax, 12);
  shape.heads = shape.kv_heads = config.size("num_attention_heads", kHeadsMax, 12);
  shape.mlp = config.size("intermediate_size", kWidthMax, 3072);
  shape.norm_eps = config.number("layer_norm_eps", 1, 1e-12);
  shape.qkv_bias = config.flag("qkv_bias", true);
  shape.tied = false;
  PatchInput& pictures = shape.pictures;
  pictures.channels = config.size("num_channels", kChannelsMax, 3);
  pictures.size = config.size("image_size", kSideMax, 224);
  pictures.patch = config.size("patch_size", kSideMax, 16);
  pictures.labels = labels_of(config);
  shape.vocab =
      pictures.labels.empty() ? config.size("num_labels", kClassesMax, kClassesByDefault) : static_cast<int64_t>(pictures.labels.size());
  if (are_default(pictures.labels)) pictures.labels.clear();
  if (shape.embed % shape.heads != 0)
    base::fail_corrupt(config.file(), fmt::format("hidden_size = {} is no multiple of num_attention_heads = {}", shape.embed, shape.heads));
  if (pictures.size % pictures.patch != 0)
    base::fail_corrupt(config.file(), fmt::format("image_size = {} is no multiple of patch_size = {}", pictures.size, pictures.patch));
  shape.head_dim = shape.embed / shape.heads;
  shape.length = pictures.positions();
}

void write_vit(base::OrderedJson& config, const DecoderShape& shape) {
  const PatchInput& pictures = shape.pictures;
  config["hidden_size"] = shape.embed;
  config["num_hidden_layers"] = shape.layers;
  config["num_attention_heads"] = shape.heads;
  config["intermediate_size"] = shape.mlp;
  config["hidden_act"] = "gelu";
  config["layer_norm_eps"] = shape.norm_eps;
  config["qkv_bias"] = shape.qkv_bias;
  config["image_size"] = pictures.size;
  config["patch_size"] = pictures.patch;
  config["num_channels"] = pictures.channels;
  base::OrderedJson names, numbers;
  for (int64_t i = 0; i < shape.vocab; ++i) {
    const auto at = static_cast<size_t>(i);
    const std::string name = at < pictures.labels.size() ? pictures.labels[at] : default_label(at);
    names[std::to_string(i)] = name;
    numbers[name] = i;
  }
  config["id2label"] = names;
  config["label2id"] = numbers;
}

std::string format_preprocessor(int64_t size) {
  base::OrderedJson json;
  json["image_processor_type"] = "ViTImageProcessor";
  json["do_resize"] = true;
  json["size"] = base::OrderedJson{{"height", size}, {"width", size}};
  json["resample"] = 2;  // bilinear
  json["do_rescale"] = true;
  json["rescale_factor"] = 1.0 / 255;
  json["do_normalize"] = true;
  json["image_mean"] = {0.5, 0.5, 0.5};
  json["image_std"] = {0.5, 0.5, 0.5};
  return base::pretty(json) + "\n";
}

}  // namespace cairn::model
