#pragma once
#include <cstdint>
#include <vector>

#include "mesh/flat_layout.h"
#include "model/call.h"
#include "model/model.h"

namespace cairn::train {

// The weights of a model at the time of construction (a frozen reference model). Trained parameters are copied. Other parameters never
// change and are shared with the live weights. With LoRA adapters, which start as the identity, the reference is the base model and only
// the adapters are copied.
class ReferenceWeights final : public model::Weights {
 public:
  // `live` is borrowed and must outlive it. `trained`: for each parameter of the model.
  ReferenceWeights(const model::Model& model, const model::Weights& live, const mesh::FlatLayout& layout, const std::vector<bool>& trained);

  at::Tensor get(mesh::ParamId id) const override;
  const mesh::Placement& placement(mesh::ParamId id) const override { return live_.placement(id); }
  int64_t bytes() const { return static_cast<int64_t>(copy_.nbytes()); }  // of the copy
  uint64_t checksum() const;                                              // of the copy

 private:
  const model::Weights& live_;
  std::vector<int32_t> places_;  // the index of each parameter in the copy; -1: it is shared
  mesh::FlatLayout layout_;
  at::Tensor copy_;
};

}  // namespace cairn::train
