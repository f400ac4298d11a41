// The gradients of a model by plain ATen and autograd: what hand-written ones are compared with.
#pragma once
#include <map>
#include <memory>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/aten.h"
#include "model/loss_terms.h"
#include "model/model.h"
#include "model/objective.h"
#include "parallel/batch/sequence_fields.h"

namespace cairn::model {

// Weights that are leaves of an autograd graph, one tensor per parameter, stacked on demand.
class LeafWeights final : public Weights {
 public:
  LeafWeights(const mesh::FlatLayout& layout, const at::Tensor& flat) {
    for (const mesh::NamedTensor& view : layout.views(flat)) leaves.push_back(view.tensor.clone().requires_grad_());
  }
  at::Tensor get(mesh::ParamId id) const override {
    if (id.count == 1) return leaves[static_cast<size_t>(id.first)];
    return at::cat(std::vector<at::Tensor>(leaves.begin() + id.first, leaves.begin() + id.first + id.count), 0);
  }
  std::vector<at::Tensor> leaves;
};

// Gradients of weight * (sum of cross entropies of the rows of "logits" against `targets`, and the loss terms of blocks), one per
// parameter.
inline std::vector<at::Tensor> gradients_by_autograd(const Model& model, const mesh::FlatLayout& layout, const at::Tensor& flat,
                                                     Buffers buffers, const mesh::Batch& batch, const std::string& target_field,
                                                     double weight, const Subnet* subnet = nullptr) {
  at::AutoGradMode record(true);
  const LeafWeights weights(layout, flat);
  const mesh::Axes alone;
  LossTerms terms;
  const Call call{.weights = weights, .buffers = buffers, .axes = alone, .subnet = subnet, .terms = &terms};
  Values values;
  mesh::Batch whole = batch;
  if (!model.loss_terms().empty()) parallel::add_sequence_fields(whole);
  for (const auto& [name, field] : whole.fields) values.put(name, field.tensor);
  for (const auto& block : model.blocks()) block->plain(values, call);
  const at::Tensor logits = values.get("logits");
  const at::Tensor targets = batch.field(target_field).reshape({-1});
  at::Tensor loss = at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), targets, {}, at::Reduction::Sum, -100) * weight;
  if (terms.total().defined()) loss = loss + terms.total() * weight;
  return torch::autograd::grad({loss}, weights.leaves, {}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                               /*allow_unused=*/subnet != nullptr);
}

}  // namespace cairn::model
