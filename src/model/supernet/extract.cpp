#include "model/supernet/extract.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::model {

mesh::NamedTensors extract(const Subnet& subnet, const ElasticShape& shape, const mesh::NamedTensors& whole) {
  mesh::NamedTensors extracted;
  for (const mesh::NamedTensor& one : whole) {
    at::Tensor part = one.tensor;
    bool runs = true;
    for (size_t i = 0; i < shape.layers.size(); ++i) {
      const ElasticLayer& layer = shape.layers[i];
      if (!one.name.starts_with(layer.tensors)) continue;
      runs = subnet.runs(layer);
      const auto middle = std::ranges::find(layer.of_middle, one.name, &MiddleTensor::name);
      if (runs && middle != layer.of_middle.end()) part = part.narrow(middle->dim, 0, subnet.width[i]);
    }
    if (runs) extracted.push_back({one.name, part.clone(at::MemoryFormat::Contiguous)});
  }
  return extracted;
}

DecoderShape extract(const Subnet& subnet, DecoderShape shape) {
  shape.layers = subnet.depth.front();
  shape.mlp = subnet.width.front();
  return shape;
}

ConvNetShape extract(const Subnet& subnet, const ElasticShape& elastic, const ConvNetShape& shape) {
  ConvNetShape extracted = shape;
  extracted.depths = subnet.depth;
  extracted.middles.clear();
  for (size_t i = 0; i < elastic.layers.size(); ++i)
    if (subnet.runs(elastic.layers[i])) extracted.middles.push_back(subnet.width[i]);
  return extracted;
}

void check_trained(const Subnet& subnet, const ElasticShape& shape, const SubnetChoices& choices) {
  const auto contains = [](const std::vector<int64_t>& list, int64_t value) { return std::ranges::find(list, value) != list.end(); };
  for (size_t stage = 0; stage < subnet.depth.size(); ++stage) {
    const int64_t whole = shape.layers_of(static_cast<int64_t>(stage));
    if (choices.depth.empty() ? subnet.depth[stage] != whole : !contains(choices.depth, subnet.depth[stage]))
      base::fail_input("subnet {}: {} layers in stage {} were never trained. Choose from [{}].", format_subnet(subnet, shape),
                       subnet.depth[stage], stage,
                       choices.depth.empty() ? std::to_string(whole) : fmt::format("{}", fmt::join(choices.depth, ", ")));
  }
  for (size_t i = 0; i < shape.layers.size(); ++i)
    if (subnet.runs(shape.layers[i]) && !contains(choices.widths[i], subnet.width[i]))
      base::fail_input("subnet {}: {} channels in {} were never trained. Choose from [{}].", format_subnet(subnet, shape), subnet.width[i],
                       shape.layers[i].name, fmt::join(choices.widths[i], ", "));
}

}  // namespace cairn::model
