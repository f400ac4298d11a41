#include "model/formed_weights.h"

#include <map>
#include <set>
#include <string>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/decoder/weight_form.h"
#include "model/model.h"

namespace cairn::model {

std::vector<const WeightForm*> weight_forms(const Model& model) {
  std::vector<const WeightForm*> all;
  for (const auto& block : model.blocks())
    for (const BlockOp& operation : block->card().operations)
      for (const std::shared_ptr<const WeightForm>& form : operation.forms) all.push_back(form.get());
  return all;
}

const Parameter& dense_weight(const BlockOp& product, size_t place, const Model& model) {
  if (!product.forms.empty()) return product.forms.at(place)->dense_parameter();
  return model.parameters().at(static_cast<size_t>(product.parameters.front().first) + place);
}

int64_t input_width(const BlockOp& product, const Model& model) {
  return dense_weight(product, 0, model).shape.at(product.fan_in_fan_out ? 0 : 1);
}

int64_t output_width(const BlockOp& product, size_t place, const Model& model) {
  return dense_weight(product, place, model).shape.at(product.fan_in_fan_out ? 1 : 0);
}

NamedWeights::NamedWeights(const Model& model, const mesh::NamedTensors& tensors) : model_(model) {
  std::map<std::string, at::Tensor> by_name;
  for (const mesh::NamedTensor& one : tensors) by_name[one.name] = one.tensor;
  for (const Parameter& one : model.parameters()) by_parameter_.push_back(by_name[one.name]);
}

at::Tensor NamedWeights::get(mesh::ParamId id) const {
  std::vector<at::Tensor> parts;
  for (int32_t i = id.first; i < id.first + id.count; ++i) {
    parts.push_back(by_parameter_.at(static_cast<size_t>(i)));
    CAIRN_CHECK(parts.back().defined(), "{} is not among the tensors", model_.parameters()[static_cast<size_t>(i)].name);
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

mesh::NamedTensors dense_tensors(const Model& model, const mesh::NamedTensors& whole, Buffers& buffers) {
  const at::NoGradGuard no_grad;
  const NamedWeights weights(model, whole);
  const mesh::Axes axes;
  const Call call{.weights = weights, .buffers = buffers, .axes = axes};
  std::set<int32_t> own;                    // parameters of forms, which no ordinary model has
  std::map<int32_t, const WeightForm*> at;  // where a dense weight goes: to the place of its form's first parameter
  for (const WeightForm* form : weight_forms(model)) {
    const std::vector<mesh::ParamId> ids = form->parameters();
    at[ids.front().first] = form;
    for (const mesh::ParamId& id : ids)
      for (int32_t i = id.first; i < id.first + id.count; ++i) own.insert(i);
  }
  mesh::NamedTensors dense;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& one = model.parameters()[i];
    if (const auto form = at.find(static_cast<int32_t>(i)); form != at.end())
      dense.push_back({form->second->dense_parameter().name, form->second->dense(call)});
    else if (!own.contains(static_cast<int32_t>(i)) && one.role != Parameter::Role::adapter)
      dense.push_back({one.name, weights.get({static_cast<int32_t>(i)})});
  }
  return dense;
}

}  // namespace cairn::model
