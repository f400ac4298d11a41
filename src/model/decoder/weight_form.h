// The seam of weight forms: what the own weight of a linear layer is made of.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"
#include "model/call.h"
#include "model/parameter.h"

namespace cairn::model {

class Model;
struct BlockOp;

// The weight w of y = x w^T as one layer has it: a parameter, a parameter under a mask, factors, a part of a larger parameter. Adapters
// (adapter.h) are added to it and know nothing of it. x [rows, in] and y [rows, out] are this rank's parts of input and output, with free
// row strides. A form is stateless: parameters and buffers arrive in the call.
class WeightForm {
 public:
  virtual ~WeightForm() = default;

  // Overwrites y = x w^T, or y = *onto + x w^T; y may be *onto.
  virtual void product(const at::Tensor& y, const at::Tensor& x, const Call& call, const at::Tensor* onto) const = 0;
  // Overwrites dx = dy w, or dx += dy w.
  virtual void input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Call& call, bool accumulate) const = 0;
  // Contributes the gradients of the form's parameters; it may leave out those that Gradients::wants does not want.
  virtual void weight_gradient(mesh::Gradients& into, const at::Tensor& x, const at::Tensor& dy, const Call& call) const = 0;
  // x w^T, [..., out]; differentiable.
  virtual at::Tensor plain(const at::Tensor& x, const Call& call) const = 0;

  // The weight in the layout of dense_parameter(), of this rank's part; the whole tensor where the call has whole parameters. Exports and
  // merges write this tensor, in the precision of the parameters.
  virtual at::Tensor dense(const Call& call) const = 0;
  // The dense weight as saved models have it: Hugging Face name, shape, axes, starting values. Whether the model has it as a parameter is
  // stores_dense(); otherwise the form's parameters take its place in the model.
  virtual const Parameter& dense_parameter() const = 0;
  virtual bool stores_dense() const = 0;
  // Writes the starting values of the form's parameters for this whole dense weight, fp32. `whole` gives the whole tensor of a parameter
  // of the form; writing to it sets the parameter. Not called for a dense weight that is stored.
  virtual void start(const at::Tensor& /*dense*/, const std::function<at::Tensor(mesh::ParamId)>& /*whole*/) const {}

  // What it reads, the dense weight first where it is stored.
  virtual std::vector<mesh::ParamId> parameters() const = 0;
  // This rank's widths, in this call.
  struct Widths {
    int64_t in = 0, out = 0;
  };
  virtual Widths widths(const Call& call) const = 0;
  // Adds what planners need to know to the card entry of the layer (operation.forms and operation.parameters are filled in already).
  virtual void describe(BlockOp& operation) const = 0;
  // Puts the form's buffers, with their starting values. Snapshots hold them (saved_buffers.h).
  virtual void add_buffers(Buffers& /*into*/, const at::TensorOptions& /*options*/) const {}
  // For messages: "masked".
  virtual const char* name() const = 0;
};

// Chooses the form of each layer while a model is built.
class WeightFormRule {
 public:
  enum class Kind {
    plain,    // the parameter itself
    stored,   // a form of the parameter, which the model has
    replaced  // a form of other parameters
  };
  virtual ~WeightFormRule() = default;
  // `dense`: the weight as a plain layer has it. Weights that are multiplied as one matrix are replaced together or not at all.
  virtual Kind kind_of(const Parameter& dense) const = 0;
  // Makes a form that is not plain, and adds its parameters to the model, behind the weights and biases of the layer. `weight`: the dense
  // parameter where it is stored.
  virtual std::shared_ptr<const WeightForm> make(Model& model, const Parameter& dense, std::optional<mesh::ParamId> weight) const = 0;
};

// The parameter itself, beside neighbours that have another form.
std::shared_ptr<const WeightForm> make_plain_weight(Parameter dense, mesh::ParamId weight);

}  // namespace cairn::model
