#include "sync/islands/fragments.h"

#include <algorithm>
#include <charconv>

namespace cairn::sync {

int64_t layer_of(std::string_view parameter) {
  while (!parameter.empty()) {
    const std::string_view part = parameter.substr(0, parameter.find('.'));
    int64_t number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error == std::errc() && end == part.data() + part.size() && number >= 0) return number;
    parameter.remove_prefix(std::min(parameter.size(), part.size() + 1));
  }
  return -1;
}

Fragments split_into_fragments(std::span<const FullParameter> model, int64_t layers_each, bool strided, bool extras_own) {
  int64_t layers = 0;
  for (const FullParameter& parameter : model) layers = std::max(layers, layer_of(parameter.name) + 1);
  Fragments fragments{.count = static_cast<int>((layers + layers_each - 1) / layers_each), .of = std::vector<int>(model.size(), -1)};
  const int of_layers = fragments.count;
  std::vector<int64_t> elements(static_cast<size_t>(of_layers));
  for (size_t i = 0; i < model.size(); ++i) {
    const int64_t layer = layer_of(model[i].name);
    if (layer < 0) continue;
    fragments.of[i] = static_cast<int>(strided ? layer % of_layers : layer / layers_each);
    elements[static_cast<size_t>(fragments.of[i])] += model[i].elements;
  }
  for (size_t i = 0; i < model.size(); ++i) {
    if (fragments.of[i] >= 0) continue;
    if (extras_own || of_layers == 0) {
      fragments.of[i] = of_layers;
      fragments.count = of_layers + 1;
    } else {
      const auto least = std::min_element(elements.begin(), elements.end());
      fragments.of[i] = static_cast<int>(least - elements.begin());
      *least += model[i].elements;
    }
  }
  return fragments;
}

Fragments single_fragment(std::span<const FullParameter> model) { return {.count = 1, .of = std::vector<int>(model.size(), 0)}; }

}  // namespace cairn::sync
