#include "model/model.h"

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"
#include "model/objective.h"

namespace cairn::model {

mesh::ParamId Model::add(Parameter parameter) {
  parameters_.push_back(std::move(parameter));
  return {static_cast<int32_t>(parameters_.size()) - 1};
}

int64_t Model::elements() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.elements();
  return n;
}

mesh::FlatLayout Model::layout() const {
  mesh::FlatLayout layout;
  for (const Parameter& p : parameters_) layout.append(p.name, p.shape);
  return layout;
}

std::vector<std::string> measures_of(const Model& model, const Objective& objective) {
  std::vector<std::string> names = objective.measures();
  for (const std::string& term : model.loss_terms()) names.push_back(term);
  return names;
}

std::vector<int32_t> Model::uses() const {
  std::vector<int32_t> uses;
  for (const Parameter& p : parameters_) uses.push_back(p.uses);
  return uses;
}

void initialize_parameter(const Parameter& p, const at::Tensor& flat, const base::Random& random) {
  CAIRN_CHECK(flat.numel() == p.elements(), "a buffer of {} elements for {} of {}", flat.numel(), p.name, p.elements());
  switch (p.init) {
    case Parameter::Init::ones:
      flat.fill_(1);
      break;
    case Parameter::Init::zeros:
      flat.zero_();
      break;
    case Parameter::Init::constant:
      flat.fill_(p.deviation);
      break;
    case Parameter::Init::normal: {
      const base::Random start = random.for_purpose("init").for_name(p.name);
      if (flat.scalar_type() != at::kDouble) {
        kernels::fill_normal(flat, start, 0, p.deviation);
      } else {  // from fp32, so that every precision starts from the same values
        const at::Tensor single = at::empty({flat.numel()}, flat.options().dtype(at::kFloat));
        kernels::fill_normal(single, start, 0, p.deviation);
        flat.copy_(single);
      }
    }
  }
  if (!p.on_hyperboloid) return;
  const at::Tensor rows = flat.view(p.shape);
  rows.select(1, 0).zero_();
  rows.select(1, 0).copy_((rows.square().sum(1) + 1).sqrt());
}

void initialize_parameters(const Model& model, const at::Tensor& flat, const base::Random& random) {
  const mesh::FlatLayout layout = model.layout();
  CAIRN_CHECK(flat.numel() == layout.elements, "a buffer of {} elements for {} parameters", flat.numel(), layout.elements);
  for (size_t i = 0; i < layout.pieces.size(); ++i)
    initialize_parameter(model.parameters()[i], flat.narrow(0, layout.pieces[i].offset, layout.pieces[i].elements), random);
}

}  // namespace cairn::model
