#include "train/flops.h"

#include <algorithm>
#include <set>
#include <string>

#include "train/job.h"
#include "train/step_methods.h"

namespace cairn::train {
namespace {

double forward_flops(const model::BlockOp& operation, int64_t length) {
  const double seen = operation.causal ? static_cast<double>(length + 1) / 2 : static_cast<double>(length);  // causal: half of all pairs
  return operation.flops_per_token + operation.flops_per_pair * seen;
}

// Whether the backward pass of a product computes weight gradients.
bool has_weight_gradient(const model::BlockOp& operation, const model::Model& model, const std::set<std::string>& trained) {
  for (const mesh::ParamId& id : operation.parameters)
    for (auto i = static_cast<size_t>(id.first); i < static_cast<size_t>(id.first + id.count); ++i)
      if (trained.contains(model.parameters()[i].name)) return true;
  return false;
}

// A sample that is no sequence of tokens counts as one token; the costs of the blocks are for each of its positions.
double positions_of_token(const model::Model& model) { return static_cast<double>(std::max<int64_t>(1, model.positions())); }
int64_t length_of(const model::Model& model, int64_t length) { return model.positions() > 0 ? model.positions() : length; }

}  // namespace

double forward_flops_per_token(const model::Model& model, int64_t length) {
  double flops = 0;
  for (const auto& block : model.blocks())
    for (const model::BlockOp& operation : block->card().operations) flops += forward_flops(operation, length_of(model, length));
  return flops * positions_of_token(model);
}

double training_flops_per_token(const Job& job) { return training_flops_per_token(job, job.data.length); }

double training_flops_per_token(const Job& job, int64_t length) {
  const model::Model& model = *job.engine.model;
  const StepNeeds& needs = step_method(job.config.settings).needs;
  if (needs.forward_passes) return needs.forward_passes(job.config.settings) * forward_flops_per_token(model, length);
  std::set<std::string> trained;
  for (const sync::FullParameter& parameter : job.engine.trained.full) trained.insert(parameter.name);
  double flops = 0;
  for (const auto& block : model.blocks())
    for (const model::BlockOp& operation : block->card().operations) {
      const bool two = operation.kind != model::BlockOp::Kind::product || has_weight_gradient(operation, model, trained);
      flops += forward_flops(operation, length_of(model, length)) * (two ? 3 : 2);
    }
  return flops * positions_of_token(model);
}

}  // namespace cairn::train
