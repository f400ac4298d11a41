#include "train/fp8_linear.h"

#include "model/model.h"
#include "parallel/layout/model_shard.h"

namespace cairn::train {

std::unique_ptr<model::Fp8LinearLayers> fp8_linear_layers(const Settings& settings, const model::Model& model, const parallel::Plan& plan) {
  if (settings.train.fp8 == Fp8Scope::none) return nullptr;
  const auto lengths = [&](const model::Parameter& parameter, int64_t dim) {
    const int64_t whole = parameter.shape[static_cast<size_t>(dim)], tp = plan.mesh.extent("tp");
    const mesh::Placement::How how = parallel::placement_of(plan, parameter.name).on("tp");
    const auto* split = std::get_if<mesh::Split>(&how);
    if (!split || split->dim != dim) return std::vector<int64_t>{whole};
    std::vector<int64_t> found;
    for (int64_t rank = 0; rank < tp; ++rank) {
      if (split->pieces.empty()) {
        found.push_back(whole / tp + (rank < whole % tp ? 1 : 0));
        continue;
      }
      found.push_back(0);
      for (const mesh::Interval& piece : split->pieces[static_cast<size_t>(rank)]) found.back() += piece.length();
    }
    return found;
  };
  return std::make_unique<model::Fp8LinearLayers>(model, name_of(settings.train.fp8), settings.train.fp8_layers, lengths);
}

}  // namespace cairn::train
