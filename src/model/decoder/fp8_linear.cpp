#include "model/decoder/fp8_linear.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/check.h"
#include "kernels/fp8.h"
#include "model/decoder/weight_form.h"
#include "model/decoder/wiring.h"
#include "model/model.h"

namespace cairn::model {
namespace {

// 3 for the block "layers.3.mlp".
std::optional<int64_t> layer_of(const Card& card) {
  constexpr std::string_view kLayers = "layers.";
  if (!card.name.starts_with(kLayers)) return std::nullopt;
  int64_t layer = 0;
  const char* first = card.name.data() + kLayers.size();
  if (std::from_chars(first, card.name.data() + card.name.size(), layer).ec != std::errc()) return std::nullopt;
  return layer;
}

void check_widths(const Model& model, const BlockOp& product, const Fp8LinearLayers::Lengths& lengths) {
  const mesh::ParamId id = product.parameters.front();
  const std::string& name = model.parameters()[static_cast<size_t>(id.first)].name;
  for (const int64_t dim : {0, 1}) {
    std::vector<int64_t> widths = lengths(model.parameters()[static_cast<size_t>(id.first)], dim);
    // Neighbours are stacked along dim 0.
    for (int32_t i = id.first + 1; dim == 0 && i < id.first + id.count; ++i) {
      const std::vector<int64_t> more = lengths(model.parameters()[static_cast<size_t>(i)], dim);
      widths.resize(std::max(widths.size(), more.size()), widths.back());
      for (size_t rank = 0; rank < widths.size(); ++rank) widths[rank] += more[std::min(rank, more.size() - 1)];
    }
    for (size_t rank = 0; rank < widths.size(); ++rank)
      if (!kernels::fits_fp8(widths[rank]))
        base::fail_input("train.fp8: {} is {} wide{}: fp8 needs multiples of 16. Choose such a width, or leave train.fp8 out.", name,
                         widths[rank], widths.size() > 1 ? fmt::format(" on rank {} of mesh.tp = {}", rank, widths.size()) : "");
  }
}

}  // namespace

Fp8LinearLayers::Fp8LinearLayers(const Model& model, const std::string& kind, const std::string& layers, const Lengths& lengths)
    : of_(model.parameters().size(), false) {
  int64_t count = 0;
  for (const auto& block : model.blocks())
    if (const auto layer = layer_of(block->card())) count = std::max(count, *layer + 1);
  if (count == 0) base::fail_input("train.fp8: this model has no layers that can use fp8. Leave it out.");
  const std::vector<int64_t> chosen = parse_layers(layers, count, "train.fp8_layers");
  for (const auto& block : model.blocks()) {
    const auto layer = layer_of(block->card());
    const bool wanted = layer ? std::find(chosen.begin(), chosen.end(), *layer) != chosen.end() : kind == "all";
    if (!wanted) continue;
    for (const BlockOp& operation : block->card().operations) {
      if (operation.kind != BlockOp::Kind::product || operation.parameters.empty()) continue;
      if (!operation.adapted.empty())
        base::fail_input("train.fp8: layers with adapters (model.lora) do not support fp8. Leave one of the two out.");
      if (!operation.forms.empty())
        base::fail_input("train.fp8: {}: its weight is {}, which does not support fp8. Leave train.fp8 out.", block->card().name,
                         operation.forms.front()->name());
      check_widths(model, operation, lengths);
      of_[static_cast<size_t>(operation.parameters.front().first)] = true;
    }
  }
}

}  // namespace cairn::model
