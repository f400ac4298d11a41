#include "model/supernet/options.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/check.h"
#include "model/supernet/elastic_shape.h"

namespace cairn::model {

base::Schema<SupernetOptions> supernet_schema() {
  using O = SupernetOptions;
  return {
      "supernet",
      "One network that contains many: layers and channels may be left out. Training it gives networks of every size.",
      {{"method", &O::method,
        "When the smaller networks begin to train: deps (after shrink_at of the run, their rate rising from 0), early (at once), late "
        "(after shrink_at, for which the whole network has a schedule of its own).",
        kShrinkMethodNames},
       {"depth", &O::depth, "Layers that a stage may have, of a decoder all of it; the largest is what the model has.",
        base::between(1, 10000)},
       {"expand", &O::expand,
        "For a cnn: channels in the middle of a layer, as multiples of those that it reads; the largest is model.cnn.expand.",
        base::between(1, 1024)},
       {"mlp", &O::mlp, "For a decoder: widths that its MLPs may have; the largest is model.mlp.", base::between(1, 1 << 22)},
       {"shrink_at", &O::shrink_at, "Fraction of the run after which the smaller networks train at the full rate.", base::between(0, 1)},
       {"ramp", &O::ramp, "Fraction of the run before shrink_at over which their rate rises from 0; 0: none.", base::between(0, 1)},
       {"restart_ratio", &O::restart_ratio,
        "For late: the rate with which the second schedule begins, as a fraction of the first one\'s highest.", base::between(0, 1)},
       {"nets_per_step", &O::nets_per_step, "Networks that a step trains on the same batch: the whole one, the smallest, and random ones.",
        base::between(2, 64)},
       {"sampling", &O::sampling,
        "How random networks are drawn: random (each depth and width by itself) or compound (widths follow the depth).",
        kSubnetSamplingNames},
       {"distill", &O::distill, "Smaller networks learn the outputs of the whole one; false: the labels."},
       {"temperature", &O::temperature, "Of these outputs.", base::more_than(0)},
       {"reorganise", &O::reorganise,
        "Before the smaller networks begin, channels are sorted by importance, and everything that belongs to them with them."},
       {"calibration_samples", &O::calibration_samples,
        "Training samples from which the batch norms of a smaller network take their statistics.", base::between(1, 1e9)}}};
}

namespace {

std::vector<int64_t> ascending(std::vector<int64_t> values) {
  std::ranges::sort(values);
  return values;
}

// Depths, or the whole depth alone.
std::vector<int64_t> depth_choices(const SupernetOptions& options, const ElasticShape& shape) {
  const int64_t whole = shape.layers_of(0);
  if (options.depth.empty()) return {};
  const std::vector<int64_t> depth = ascending(options.depth);
  if (std::ranges::adjacent_find(depth) != depth.end())
    base::fail_input("supernet.depth = [{}]: {} is there twice. Write every depth once.", fmt::join(options.depth, ", "),
                     *std::ranges::adjacent_find(depth));
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    if (shape.layers_of(stage) != depth.back())
      base::fail_input("supernet.depth = [{}]: the largest must be what the model has, and {} has {} layers. Make the two the same.",
                       fmt::join(options.depth, ", "), shape.stages() > 1 ? fmt::format("its stage {}", stage) : "it",
                       shape.layers_of(stage));
  return whole == depth.front() && depth.size() == 1 ? std::vector<int64_t>{} : depth;
}

}  // namespace

SubnetChoices subnet_choices(const SupernetOptions& options, const ElasticShape& shape) {
  if (shape.layers.empty())
    base::fail_input("supernet: this kind of model has no layers or channels that can be left out. Use model.kind = \"cnn\" or a decoder.");
  if (shape.one_width && !options.expand.empty())
    base::fail_input("supernet.expand: is for model.kind = \"cnn\". Set supernet.mlp, the widths of the MLPs.");
  if (!shape.one_width && !options.mlp.empty()) base::fail_input("supernet.mlp: is for decoders. Set supernet.expand.");
  SubnetChoices choices{.depth = depth_choices(options, shape), .widths = {}};
  const std::vector<int64_t> chosen = ascending(shape.one_width ? options.mlp : options.expand);
  const char* key = shape.one_width ? "mlp" : "expand";
  for (const ElasticLayer& layer : shape.layers) {
    std::vector<int64_t>& widths = choices.widths.emplace_back();
    for (const int64_t one : chosen) widths.push_back(shape.one_width ? one : layer.width_of(one));
    if (widths.empty()) widths.push_back(layer.middle);
    if (widths.back() != layer.middle)
      base::fail_input("supernet.{} = [{}]: the largest gives {} channels in {}, and the model has {}. Make the two the same.", key,
                       fmt::join(chosen, ", "), widths.back(), layer.name, layer.middle);
    for (size_t i = 1; i < widths.size(); ++i)
      if (widths[i] == widths[i - 1])
        base::fail_input("supernet.{}: {} and {} give the same {} channels in {}. Leave one of them out.", key, chosen[i - 1], chosen[i],
                         widths[i], layer.name);
  }
  if (choices.depth.empty() && chosen.size() < 2)
    base::fail_input("supernet: there is one network only. Write at least two values in supernet.depth or supernet.{}.", key);
  return choices;
}

}  // namespace cairn::model
