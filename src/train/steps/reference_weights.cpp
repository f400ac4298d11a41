#include "train/steps/reference_weights.h"

#include "kernels/aten.h"
#include "model/trainable.h"

namespace cairn::train {

ReferenceWeights::ReferenceWeights(const model::Model& model, const parallel::ShardedWeights& live, const std::vector<bool>& trained)
    : live_(live), copied_(model::with_neighbours(model, trained)), copy_(live.copy_of(copied_)) {
  int32_t next = 0;
  for (const bool one : copied_) places_.push_back(one ? next++ : -1);
}

ReferenceWeights::Ids ReferenceWeights::split(std::span<const mesh::ParamId> ids) const {
  Ids found;
  for (const mesh::ParamId& id : ids) {
    const int32_t place = places_[static_cast<size_t>(id.first)];
    place < 0 ? found.shared.push_back(id) : found.copied.push_back({place, id.count});
  }
  return found;
}

at::Tensor ReferenceWeights::get(mesh::ParamId id) const {
  const int32_t place = places_[static_cast<size_t>(id.first)];
  return place < 0 ? live_.get(id) : copy_->get({place, id.count});
}

void ReferenceWeights::fetch(std::span<const mesh::ParamId> ids) const {
  const Ids of = split(ids);
  copy_->fetch(of.copied);
  live_.fetch(of.shared);
}

void ReferenceWeights::release(std::span<const mesh::ParamId> ids, std::span<const mesh::ParamId> next) const {
  const Ids of = split(ids), then = split(next);
  copy_->release(of.copied, then.copied);
  live_.release(of.shared, then.shared);
}

}  // namespace cairn::train
