// Linear layers with adapters and fp8.
//
// fp8 (kernels/fp8.h): x and w are quantized to e4m3, dy to e5m2. The three products of a layer need x and dy by rows and by columns, so
// forward makes both forms of x and keeps the columns for the weight gradient.
//
// A weight in another form (weight_form.h) computes its own products, each of the neighbours by itself.
#include "model/decoder/linear.h"

#include <utility>

#include <ATen/core/IListRef.h>
#include <ATen/ops/constant_pad_nd.h>

#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "kernels/low_precision.h"
#include "model/card.h"
#include "model/decoder/dense_product.h"
#include "model/decoder/fp8_linear.h"

namespace cairn::model {

template <typename Act>
void Linear::for_each_form(const at::Tensor& y, const Call& call, const Act& act) const {
  int64_t begin = 0;
  for (const std::shared_ptr<const WeightForm>& one : forms) {
    const int64_t width = one->widths(call).out;
    act(*one, forms.size() == 1 ? y : y.narrow(-1, begin, width));
    begin += width;
  }
}

int64_t Linear::width_of_neighbour(int32_t place, const Call& call) const {
  if (!forms.empty()) return forms[static_cast<size_t>(place)]->widths(call).out;
  return call.weights.get({weight.first + place}).size(0);
}

at::Tensor Linear::outputs(const at::Tensor& y, const PlacedAdapter& one, const Call& call) const {
  if (weight.count == 1) return y;
  int64_t begin = 0;
  for (int32_t i = 0; i < one.place; ++i) begin += width_of_neighbour(i, call);
  return y.narrow(1, begin, width_of_neighbour(one.place, call));
}

bool Linear::is_fp8(const Call& call) const { return forms.empty() && call.fp8() && call.fp8()->of(weight); }

std::optional<at::Tensor> Linear::bare_weight(const Call& call) const {
  if (bias || fan_in_fan_out || !adapters.empty() || !forms.empty() || is_fp8(call)) return {};
  return call.weights.get(weight);
}

std::optional<Linear::Fp8Operands> Linear::fp8_operands(const at::Tensor& x, const Call& call, Operand* made) const {
  if (bias || fan_in_fan_out || !adapters.empty() || !is_fp8(call)) return {};
  return quantize_operands(x, call, made);
}

kernels::Fp8Matrix Linear::quantized_weight(const Call& call, bool forward, kernels::Fp8Matrix* kept) const {
  const auto make = [&](const kernels::Fp8Forms& forms) { return kernels::to_fp8(call.weights.get(weight), kernels::Fp8::e4m3, forms); };
  if (!kept) return make({.rows = forward != fan_in_fan_out, .columns = forward == fan_in_fan_out});
  if (!kept->defined()) *kept = make({});
  return *kept;
}

Linear::Fp8Operands Linear::quantize_operands(const at::Tensor& x, const Call& call, Operand* made,
                                              kernels::Fp8Matrix* weight_codes) const {
  Fp8Operands quantized{.x = kernels::to_fp8(x, kernels::Fp8::e4m3, {.columns = made != nullptr}, made ? made->amax : at::Tensor()),
                        .w = quantized_weight(call, /*forward=*/true, weight_codes)};
  if (made) made->codes = {.columns = quantized.x.columns, .factor = quantized.x.factor};
  return quantized;
}

void Linear::forward(const at::Tensor& y, const at::Tensor& x, const Call& call, Operand* made, kernels::Fp8Matrix* weight_codes,
                     int64_t first_row) const {
  product(y, x, call, nullptr, made, weight_codes, first_row);
  add_bias(y, call);
}

void Linear::product(const at::Tensor& y, const at::Tensor& x, const Call& call, const at::Tensor* onto, Operand* made,
                     kernels::Fp8Matrix* weight_codes, int64_t first_row) const {
  if (is_fp8(call)) {
    const Fp8Operands codes = quantize_operands(x, call, made, weight_codes);
    if (fan_in_fan_out && onto) y.copy_(*onto);
    fan_in_fan_out ? kernels::linear_backward_input(y, codes.x, codes.w, onto != nullptr) : kernels::linear(y, codes.x, codes.w, onto);
    return;
  }
  if (forms.empty()) {
    dense_product(y, x, call.weights.get(weight), fan_in_fan_out, onto);
  } else {
    if (onto && !onto->is_same(y) && forms.size() > 1) y.copy_(*onto);  // each form then adds to its own columns
    for_each_form(y, call, [&](const WeightForm& form, const at::Tensor& part) {
      form.product(part, x, call, !onto ? nullptr : forms.size() > 1 ? &part : onto);
    });
  }
  for (const PlacedAdapter& one : adapters) one.adapter->add_output(outputs(y, one, call), x, first_row, call);
}

void Linear::add_bias(const at::Tensor& y, const Call& call) const {
  if (bias) y.add_(active_bias(call));
}

at::Tensor Linear::active_bias(const Call& call) const {
  const at::Tensor all = call.weights.get(*bias);
  if (forms.empty() || all.size(0) == out_width(call)) return all;
  std::vector<at::Tensor> parts;
  for (int32_t i = 0; i < static_cast<int32_t>(forms.size()); ++i)
    parts.push_back(call.weights.get({bias->first + i}).narrow(0, 0, width_of_neighbour(i, call)));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

void Linear::input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Call& call, Operand* made, kernels::Fp8Matrix* weight_codes,
                            int64_t first_row) const {
  if (is_fp8(call)) {
    if (made && !made->codes.rows.defined()) quantize_gradient(*made, dy);
    const kernels::Fp8Matrix codes = made ? made->codes : kernels::to_fp8(dy, kernels::Fp8::e5m2, {.columns = false});
    const kernels::Fp8Matrix weights = quantized_weight(call, /*forward=*/false, weight_codes);
    fan_in_fan_out ? kernels::linear(dx, codes, weights) : kernels::linear_backward_input(dx, codes, weights);
    if (made) made->codes = {.columns = codes.columns, .factor = codes.factor};
    return;
  }
  if (forms.empty()) {
    dense_input_gradient(dx, dy, call.weights.get(weight), fan_in_fan_out);
  } else {
    bool first = true;
    for_each_form(dy, call, [&](const WeightForm& form, const at::Tensor& part) {
      form.input_gradient(dx, part, call, /*accumulate=*/!std::exchange(first, false));
    });
  }
  for (const PlacedAdapter& one : adapters) one.adapter->input_gradient(dx, outputs(dy, one, call), first_row, call);
}

void Linear::quantize_gradient(Operand& into, const at::Tensor& dy) { into.codes = kernels::to_fp8(dy, kernels::Fp8::e5m2, {}, into.amax); }

void Linear::weight_gradient(mesh::Gradients& into, const Operand& x, const Operand& dy, const Call& call) const {
  product_gradient(into, x, dy, call);
  if (bias) bias_gradient(into, dy.values, call);
}

void Linear::bias_gradient(mesh::Gradients& into, const at::Tensor& dy, const Call& call) const {
  if (!bias) return;
  if (forms.empty() || call.weights.get(*bias).size(0) == dy.size(1)) return into.add_sum(*bias, dy);
  int32_t place = 0;  // some outputs are not computed: their biases have no gradient
  for_each_form(dy, call, [&](const WeightForm&, const at::Tensor& part) {
    const mesh::ParamId id{bias->first + place++};
    into.add_sum(id, at::constant_pad_nd(part, {0, call.weights.get(id).size(0) - part.size(1)}));
  });
}

void Linear::product_gradient(mesh::Gradients& into, const Operand& x_operand, const Operand& dy_operand, const Call& call) const {
  const at::Tensor &x = x_operand.values, &dy = dy_operand.values;
  if (is_fp8(call)) {  // quantize the operands that no other product has quantized whole
    const kernels::Fp8Forms columns{.rows = false};
    const kernels::Fp8Matrix in = x_operand.codes.defined() ? x_operand.codes : kernels::to_fp8(x, kernels::Fp8::e4m3, columns);
    const kernels::Fp8Matrix out = dy_operand.codes.defined() ? dy_operand.codes : kernels::to_fp8(dy, kernels::Fp8::e5m2, columns);
    return fan_in_fan_out ? into.outer_fp8(weight, out, in) : into.outer_fp8(weight, in, out);
  }
  for (const PlacedAdapter& one : adapters) one.adapter->weight_gradient(into, x, outputs(dy, one, call), call);
  if (forms.empty()) return fan_in_fan_out ? into.outer(weight, dy, x) : into.outer(weight, x, dy);
  for_each_form(dy, call, [&](const WeightForm& form, const at::Tensor& part) { form.weight_gradient(into, x, part, call); });
}

at::Tensor Linear::plain_product(const at::Tensor& x, const Call& call) const {
  if (forms.empty()) {
    const at::Tensor w = call.weights.get(weight);
    return at::matmul(x, fan_in_fan_out ? w : w.t());
  }
  std::vector<at::Tensor> parts;
  for (const std::shared_ptr<const WeightForm>& one : forms) parts.push_back(one->plain(x, call));
  return parts.size() == 1 ? parts[0] : at::cat(parts, -1);
}

at::Tensor Linear::plain(const at::Tensor& x, const Call& call) const {
  const at::Tensor y = plain_product(x, call);
  at::Tensor sum = bias ? y + active_bias(call) : y;
  for (const PlacedAdapter& one : adapters) {
    const at::Tensor added = one.adapter->plain(x, call);
    int64_t begin = 0;
    for (int32_t i = 0; i < one.place; ++i) begin += width_of_neighbour(i, call);
    sum = sum + at::constant_pad_nd(added, {begin, sum.size(-1) - begin - added.size(-1)});
  }
  return sum;
}

int64_t Linear::in_width(const Call& call) const {
  if (!forms.empty()) return forms.front()->widths(call).in;
  return call.weights.get(weight).size(fan_in_fan_out ? 0 : 1);
}

int64_t Linear::out_width(const Call& call) const {
  if (forms.empty()) return call.weights.get(weight).size(fan_in_fan_out ? 1 : 0);
  int64_t width = 0;
  for (const std::shared_ptr<const WeightForm>& one : forms) width += one->widths(call).out;
  return width;
}

std::vector<mesh::ParamId> Linear::parameters() const {
  std::vector<mesh::ParamId> all;
  if (weight.count > 0) all.push_back(weight);
  if (bias) all.push_back(*bias);
  for (const PlacedAdapter& one : adapters)
    for (const mesh::ParamId& id : one.adapter->parameters()) all.push_back(id);
  for (const std::shared_ptr<const WeightForm>& form : forms)
    for (const mesh::ParamId& id : form->parameters())
      if (id.first < weight.first || id.first >= weight.first + weight.count) all.push_back(id);
  return all;
}

void Linear::describe(BlockOp& operation) const {
  operation.kind = BlockOp::Kind::product;
  operation.parameters = parameters();
  operation.fan_in_fan_out = fan_in_fan_out;
  for (const PlacedAdapter& one : adapters) {
    operation.adapted.push_back(one.place);
    one.adapter->describe(operation);
  }
  operation.forms = forms;
  for (const std::shared_ptr<const WeightForm>& form : forms) form->describe(operation);
}

}  // namespace cairn::model
