#include "model/families/expert_names.h"

#include <utility>

#include <fmt/format.h>

#include "model/families/families.h"

namespace cairn::model {
namespace {

std::string of_expert(const std::string& layer, std::string pattern, int64_t expert) {
  pattern.replace(pattern.find('#'), 1, std::to_string(expert));
  return layer + pattern + ".weight";
}

template <class Act>
void for_each_expert_layer(const DecoderShape& shape, const Act& act) {
  for (int64_t layer = 0; layer < shape.layers; ++layer)
    if (shape.experts.in_layer(layer)) act(fmt::format("{}.{}.", family(shape.family).names.layers, layer));
}

}  // namespace

ExpertNames expert_names(const std::string& layer) {
  return {.router = layer + "mlp.gate.weight",
          .bias = layer + "mlp.gate" + std::string(kExpertBiasEnding),
          .gate_up = layer + "mlp.experts.gate_up_proj",
          .down = layer + "mlp.experts.down_proj",
          .shared = layer + "mlp.shared_expert.",
          .shared_gate = layer + "mlp.shared_expert_gate"};
}

std::vector<StackedParameter> stacked_parameters(const DecoderShape& shape) {
  std::vector<StackedParameter> all;
  const std::vector<std::string>& expert = family(shape.family).names.expert;
  for_each_expert_layer(shape, [&](const std::string& layer) {
    StackedParameter gate_up{expert_names(layer).gate_up, {}}, down{expert_names(layer).down, {}};
    for (int64_t e = 0; e < shape.experts.count; ++e) {
      gate_up.parts.push_back({of_expert(layer, expert[0], e), of_expert(layer, expert[1], e)});
      down.parts.push_back({of_expert(layer, expert[2], e)});
    }
    all.push_back(std::move(gate_up)), all.push_back(std::move(down));
  });
  return all;
}

std::vector<std::pair<std::string, std::string>> renamed_routers(const DecoderShape& shape) {
  std::vector<std::pair<std::string, std::string>> all;
  for_each_expert_layer(shape, [&](const std::string& layer) {
    const std::string own = expert_names(layer).router, theirs = layer + family(shape.family).names.router + ".weight";
    if (own != theirs) all.emplace_back(own, theirs);
  });
  return all;
}

}  // namespace cairn::model
