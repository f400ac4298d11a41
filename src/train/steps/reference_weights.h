#pragma once
#include <cstdint>
#include <vector>

#include "mesh/flat_layout.h"
#include "model/call.h"
#include "model/model.h"

namespace cairn::train {

// A model's weights as they are when this is made, whatever training does to them afterwards: a copy of what is trained, while the rest is
// shared with the live weights, which never change. Under adapters that begin by changing nothing it is the model without them, at the
// price of a copy of the adapters alone.
class ReferenceWeights final : public model::Weights {
 public:
  // `live` is borrowed and must outlive it. `trained`: by place in the model.
  ReferenceWeights(const model::Model& model, const model::Weights& live, const mesh::FlatLayout& layout, const std::vector<bool>& trained);

  at::Tensor get(mesh::ParamId id) const override;
  const mesh::Placement& placement(mesh::ParamId id) const override { return live_.placement(id); }
  int64_t bytes() const { return static_cast<int64_t>(copy_.nbytes()); }  // of the copy
  uint64_t checksum() const;                                              // of the copy

 private:
  const model::Weights& live_;
  std::vector<int32_t> places_;  // of each parameter in the copy; -1: it is shared
  mesh::FlatLayout layout_;
  at::Tensor copy_;
};

}  // namespace cairn::train
