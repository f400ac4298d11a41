#include "model/vision/conv_config.h"

#include "base/check.h"
#include "base/json.h"
#include "model/families/config_fields.h"

namespace cairn::model {
namespace {

constexpr const char* kConvType = "cairn_cnn";
constexpr int kConvDepthMax = 16;

std::vector<int64_t> sizes_of(const ConfigFields& config, const char* key, int64_t most) {
  const base::Json* list = config.find(key);
  if (!list || !list->is_array() || list->empty() || list->size() > static_cast<size_t>(kLayersMax))
    base::fail_corrupt(config.file(), fmt::format("{} must be a list of sizes", key));
  std::vector<int64_t> sizes;
  for (const base::Json& one : *list) {
    if (!one.is_number_integer() || one.get<int64_t>() < 1 || one.get<int64_t>() > most)
      base::fail_corrupt(config.file(), fmt::format("{} has {}: must be whole numbers from 1 to {}", key, base::shown(one), most));
    sizes.push_back(one.get<int64_t>());
  }
  return sizes;
}

}  // namespace

std::string format_conv_config(const ConvNetShape& shape) {
  base::OrderedJson config;
  config["model_type"] = kConvType;
  config["num_channels"] = shape.channels;
  config["image_size"] = shape.size;
  config["num_classes"] = shape.classes;
  config["widths"] = shape.widths;
  config["depths"] = shape.depths;
  config["kernel"] = shape.kernel;
  config["middles"] = middles_of(shape);
  return base::pretty(config) + "\n";
}

ConvNetShape parse_conv_config(const std::string& text, const std::string& file) {
  const base::GuardedJson parsed = base::parse_json_guarded(text, kConvDepthMax);
  if (!parsed.trouble.empty()) base::fail_corrupt(file, parsed.trouble);
  if (!parsed.value.is_object()) base::fail_corrupt(file, "not a JSON object");
  const ConfigFields config(parsed.value, file);
  if (const base::Json* type = config.find("model_type"); !type || *type != kConvType)
    base::fail_input("{}: model_type is {}, and {} is expected. Give the directory of a convolutional network.", file,
                     type ? base::shown(*type) : "missing", kConvType);
  ConvNetShape shape{.channels = config.size("num_channels", kHeadsMax),
                     .size = config.size("image_size", kWidthMax),
                     .classes = config.size("num_classes", kVocabMax),
                     .widths = sizes_of(config, "widths", kWidthMax),
                     .depths = sizes_of(config, "depths", kLayersMax),
                     .expand = 1,
                     .kernel = config.size("kernel", kHeadsMax),
                     .middles = sizes_of(config, "middles", kWidthMax)};
  int64_t layers = 0;
  for (const int64_t depth : shape.depths) layers += depth;
  if (shape.widths.size() != shape.depths.size() || shape.middles.size() != static_cast<size_t>(layers) || shape.kernel % 2 == 0)
    base::fail_corrupt(file, fmt::format("{} widths, {} depths and {} middles with kernel {} do not belong together", shape.widths.size(),
                                         shape.depths.size(), shape.middles.size(), shape.kernel));
  return shape;
}

}  // namespace cairn::model
