#include "train/steps/reference_weights.h"

#include "kernels/aten.h"
#include "mesh/trainable_gradients.h"
#include "train/state/tensor_checksum.h"

namespace cairn::train {
namespace {

// Adds the neighbours of chosen parameters: parameters that a block reads as one matrix are copied together.
std::vector<bool> with_neighbours(const model::Model& model, std::vector<bool> chosen) {
  for (const auto& block : model.blocks())
    for (const model::BlockOp& operation : block->card().operations)
      for (const mesh::ParamId& id : operation.parameters) {
        bool any = false;
        for (int32_t i = id.first; i < id.first + id.count; ++i) any = any || chosen[static_cast<size_t>(i)];
        for (int32_t i = id.first; i < id.first + id.count; ++i)
          if (any) chosen[static_cast<size_t>(i)] = true;
      }
  return chosen;
}

}  // namespace

ReferenceWeights::ReferenceWeights(const model::Model& model, const model::Weights& live, const mesh::FlatLayout& layout,
                                   const std::vector<bool>& trained)
    : live_(live) {
  const std::vector<bool> copied = with_neighbours(model, trained);
  layout_ = mesh::trainable_layout(layout, copied);
  copy_ = at::empty({layout_.elements}, live.get({0}).options());
  int32_t next = 0;
  for (size_t i = 0; i < copied.size(); ++i) {
    places_.push_back(copied[i] ? next++ : -1);
    if (copied[i]) layout_.view(copy_, {places_[i]}).copy_(live.get({static_cast<int32_t>(i)}));
  }
}

at::Tensor ReferenceWeights::get(mesh::ParamId id) const {
  const int32_t place = places_[static_cast<size_t>(id.first)];
  return place < 0 ? live_.get(id) : layout_.view(copy_, {place, id.count});
}

uint64_t ReferenceWeights::checksum() const { return checksum_of(copy_); }

}  // namespace cairn::train
