#include "model/supernet/elastic_shape.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace cairn::model {
namespace {

// Whole numbers between commas.
std::vector<int64_t> parse_numbers(const std::string& whole, std::string_view text) {
  std::vector<int64_t> numbers;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    int64_t number = 0;
    const auto [after, error] = std::from_chars(one.data(), one.data() + one.size(), number);
    if (error != std::errc() || after != one.data() + one.size() || number < 1)
      base::fail_input("subnet \"{}\": \"{}\" is no number of layers or channels. Write depths, a colon, and widths: \"2,3:64,32\".", whole,
                       one);
    numbers.push_back(number);
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
  return numbers;
}

}  // namespace

int64_t middle_channels(int64_t in, int64_t expand) {
  constexpr int64_t kStep = 8;
  return std::max(kStep, (in * expand + kStep / 2) / kStep * kStep);
}

int64_t ElasticLayer::width_of(int64_t expand) const { return middle_channels(in, expand); }

int64_t ElasticShape::layers_of(int64_t stage) const {
  return std::ranges::count_if(layers, [&](const ElasticLayer& one) { return one.stage == stage; });
}

Subnet whole_subnet(const ElasticShape& shape) {
  Subnet whole;
  for (int64_t stage = 0; stage < shape.stages(); ++stage) whole.depth.push_back(shape.layers_of(stage));
  for (const ElasticLayer& layer : shape.layers) whole.width.push_back(layer.middle);
  return whole;
}

double flops_of(const Subnet& subnet, const ElasticShape& shape) {
  double flops = shape.other_flops;
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    const ElasticLayer& layer = shape.layers[i];
    if (!subnet.runs(layer)) continue;
    const double share = static_cast<double>(subnet.width[i]) / static_cast<double>(layer.middle);
    flops += layer.fixed_flops + (layer.flops - layer.fixed_flops) * share;
  }
  return flops;
}

std::string format_subnet(const Subnet& subnet, const ElasticShape& shape) {
  std::vector<int64_t> widths;
  for (size_t i = 0; i < shape.layers.size(); ++i)
    if (subnet.runs(shape.layers[i]) && !(shape.one_width && !widths.empty())) widths.push_back(subnet.width[i]);
  return fmt::format("{}:{}", fmt::join(subnet.depth, ","), fmt::join(widths, ","));
}

Subnet parse_subnet(const std::string& text, const ElasticShape& shape) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos)
    base::fail_input("subnet \"{}\": there is no colon. Write depths, a colon, and widths: \"2,3:64,32,64,64,32\".", text);
  Subnet subnet = whole_subnet(shape);
  const std::vector<int64_t> depths = parse_numbers(text, std::string_view(text).substr(0, colon));
  if (depths.size() != subnet.depth.size())
    base::fail_input("subnet \"{}\": it has {} depths, and the model {} stages. Write one for each.", text, depths.size(),
                     subnet.depth.size());
  for (size_t stage = 0; stage < depths.size(); ++stage)
    if (depths[stage] > subnet.depth[stage])
      base::fail_input("subnet \"{}\": {} layers in stage {}, which has {}. Choose at most that.", text, depths[stage], stage,
                       subnet.depth[stage]);
  subnet.depth = depths;
  std::vector<int64_t> widths = parse_numbers(text, std::string_view(text).substr(colon + 1));
  const auto runs = [&](const ElasticLayer& layer) { return subnet.runs(layer); };
  const auto running = static_cast<size_t>(std::ranges::count_if(shape.layers, runs));
  if (shape.one_width && widths.size() != 1)
    base::fail_input("subnet \"{}\": it has {} widths, and all layers of this model have the same. Write one.", text, widths.size());
  if (shape.one_width) widths.assign(shape.layers.size(), widths.front());
  if (!shape.one_width && widths.size() != running)
    base::fail_input("subnet \"{}\": it has {} widths, and {} layers run. Write one for each of them.", text, widths.size(), running);
  size_t next = 0;
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    if (!subnet.runs(shape.layers[i]) && !shape.one_width) continue;
    subnet.width[i] = widths[next++];
    if (subnet.width[i] > shape.layers[i].middle)
      base::fail_input("subnet \"{}\": {} channels in {}, which has {}. Choose at most that.", text, subnet.width[i], shape.layers[i].name,
                       shape.layers[i].middle);
  }
  return subnet;
}

}  // namespace cairn::model
