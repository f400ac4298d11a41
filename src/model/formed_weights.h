// The weights of a model's linear layers, whatever they are made of (decoder/weight_form.h).
#pragma once
#include <functional>
#include <vector>

#include "mesh/named_tensor.h"
#include "model/call.h"
#include "model/card.h"

namespace cairn::model {

class Model;
class WeightForm;
struct Parameter;

// The forms that are not plain parameters, in running order.
std::vector<const WeightForm*> weight_forms(const Model& model);

// The dense weight `place` of a product: that of its form, or the parameter.
const Parameter& dense_weight(const BlockOp& product, size_t place, const Model& model);
// The inputs and outputs of one of a product's weights.
int64_t input_width(const BlockOp& product, const Model& model);
int64_t output_width(const BlockOp& product, size_t place, const Model& model);

// Whole parameters by name, as Weights: for exports and merges.
class NamedWeights final : public Weights {
 public:
  // `tensors`: whole, under the names of the model's parameters; others may be among them. Borrows the model.
  NamedWeights(const Model& model, const mesh::NamedTensors& tensors);
  // Neighbours are stacked in a new tensor.
  at::Tensor get(mesh::ParamId id) const override;

 private:
  const Model& model_;
  std::vector<at::Tensor> by_parameter_;  // undefined: not given
};

// The tensors that an ordinary model of these weights has: the parameters, with the dense weight of each form in the place of the form's
// own parameters. Adapters are left out. `whole`: all parameters; `buffers`: those of the model.
mesh::NamedTensors dense_tensors(const Model& model, const mesh::NamedTensors& whole, Buffers& buffers);

}  // namespace cairn::model
