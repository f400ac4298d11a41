#include "model/fp8_products.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/check.h"
#include "kernels/fp8.h"
#include "model/model.h"
#include "model/wiring.h"

namespace cairn::model {
namespace {

// Of a block "layers.3.mlp": 3.
std::optional<int64_t> layer_of(const Card& card) {
  constexpr std::string_view kLayers = "layers.";
  if (!card.name.starts_with(kLayers)) return std::nullopt;
  int64_t layer = 0;
  const char* first = card.name.data() + kLayers.size();
  if (std::from_chars(first, card.name.data() + card.name.size(), layer).ec != std::errc()) return std::nullopt;
  return layer;
}

void check_widths(const Model& model, const Operation& product, int64_t parts) {
  const mesh::ParamId id = product.parameters.front();
  int64_t out = 0, in = 0;
  for (int32_t i = id.first; i < id.first + id.count; ++i) {
    const std::vector<int64_t>& shape = model.parameters()[static_cast<size_t>(i)].shape;
    out += shape[0], in = shape[1];
  }
  const std::string& name = model.parameters()[static_cast<size_t>(id.first)].name;
  for (const int64_t width : {out, in})
    if (width % parts != 0 || !kernels::fits_fp8(width / parts))
      base::fail_input("train.fp8: {} is {} wide{}: codes of eight bits need multiples of 16: choose such a width, or leave train.fp8 out",
                       name, width, parts > 1 ? fmt::format(", shared out over mesh.tp = {}", parts) : "");
}

}  // namespace

Fp8Products::Fp8Products(const Model& model, const std::string& kind, const std::string& layers, int64_t parts)
    : of_(model.parameters().size(), false) {
  int64_t count = 0;
  for (const auto& block : model.blocks())
    if (const auto layer = layer_of(block->card())) count = std::max(count, *layer + 1);
  if (count == 0) base::fail_input("train.fp8: this model has no layers whose products could be in eight bits: leave it out");
  const std::vector<int64_t> chosen = layers_named(layers, count);
  for (const auto& block : model.blocks()) {
    const auto layer = layer_of(block->card());
    const bool wanted = layer ? std::find(chosen.begin(), chosen.end(), *layer) != chosen.end() : kind == "all";
    if (!wanted) continue;
    for (const Operation& operation : block->card().operations) {
      if (operation.kind != Operation::Kind::product || operation.parameters.empty()) continue;
      if (!operation.adapted.empty())
        base::fail_input("train.fp8: layers with adapters (model.lora) are not multiplied in eight bits: leave one of the two out");
      check_widths(model, operation, parts);
      of_[static_cast<size_t>(operation.parameters.front().first)] = true;
    }
  }
}

}  // namespace cairn::model
