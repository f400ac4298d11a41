#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "model/call.h"
#include "model/model.h"
#include "parallel/state/sharded_weights.h"

namespace cairn::train {

// The weights of a model at the time of construction (a frozen reference model). Trained parameters are copied; with ZeRO 3 each rank
// copies its shard of them. Other parameters never change and are shared with the live weights. With LoRA adapters, which start as the
// identity, the reference is the base model and only the adapters are copied.
class ReferenceWeights final : public model::Weights {
 public:
  // `live` is borrowed and must outlive it. `trained`: for each parameter of the model.
  ReferenceWeights(const model::Model& model, const parallel::ShardedWeights& live, const std::vector<bool>& trained);

  at::Tensor get(mesh::ParamId id) const override;
  const mesh::Placement& placement(mesh::ParamId id) const override { return live_.placement(id); }
  void fetch(std::span<const mesh::ParamId> ids) const override;
  void release(std::span<const mesh::ParamId> ids, std::span<const mesh::ParamId> next = {}) const override;
  int64_t bytes() const { return copy_->bytes(); }             // of the copy
  const std::vector<bool>& copied() const { return copied_; }  // by parameter of the model

 private:
  // Ids of copied parameters, as the copy has them, and ids of shared ones.
  struct Ids {
    std::vector<mesh::ParamId> copied, shared;
  };
  Ids split(std::span<const mesh::ParamId> ids) const;

  const parallel::ShardedWeights& live_;
  std::vector<bool> copied_;
  std::vector<int32_t> places_;  // the index of each parameter in the copy; -1: it is shared
  std::unique_ptr<parallel::ShardedWeights> copy_;
};

}  // namespace cairn::train
