// Linear layers with adapters and fp8.
//
// fp8 (kernels/fp8.h): x and w are quantized to e4m3, dy to e5m2. The three products of a layer need x and dy by rows and by columns, so
// forward makes both forms of x and keeps the columns for the weight gradient.
//
// A weight stored [in, out] (fan_in_fan_out) is the weight of the input gradient of a layer that runs the other way, so the same three
// kernels serve both layouts.
#include "model/decoder/linear.h"

#include <ATen/ops/constant_pad_nd.h>

#include "kernels/aten.h"
#include "kernels/gemm.h"
#include "kernels/low_precision.h"
#include "model/card.h"
#include "model/decoder/fp8_linear.h"

namespace cairn::model {
at::Tensor Linear::outputs(const at::Tensor& y, const PlacedAdapter& one, const Call& call) const {
  if (weight.count == 1) return y;
  int64_t begin = 0;
  for (int32_t i = 0; i < one.place; ++i) begin += call.weights.get({weight.first + i}).size(0);
  return y.narrow(1, begin, call.weights.get({weight.first + one.place}).size(0));
}

bool Linear::is_fp8(const Call& call) const { return call.fp8() && call.fp8()->of(weight); }

std::optional<at::Tensor> Linear::bare_weight(const Call& call) const {
  if (bias || fan_in_fan_out || !adapters.empty() || is_fp8(call)) return {};
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
  const at::Tensor w = call.weights.get(weight);
  if (fan_in_fan_out && onto) y.copy_(*onto);
  fan_in_fan_out ? kernels::linear_backward_input(y, x, w, onto != nullptr) : kernels::linear(y, x, w, onto);
  for (const PlacedAdapter& one : adapters) one.adapter->add_output(outputs(y, one, call), x, first_row, call);
}

void Linear::add_bias(const at::Tensor& y, const Call& call) const {
  if (bias) y.add_(call.weights.get(*bias));
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
  const at::Tensor w = call.weights.get(weight);
  fan_in_fan_out ? kernels::linear(dx, dy, w) : kernels::linear_backward_input(dx, dy, w);
  for (const PlacedAdapter& one : adapters) one.adapter->input_gradient(dx, outputs(dy, one, call), first_row, call);
}

void Linear::quantize_gradient(Operand& into, const at::Tensor& dy) { into.codes = kernels::to_fp8(dy, kernels::Fp8::e5m2, {}, into.amax); }

void Linear::weight_gradient(mesh::Gradients& into, const Operand& x, const Operand& dy, const Call& call) const {
  product_gradient(into, x, dy, call);
  if (bias) bias_gradient(into, dy.values);
}

void Linear::bias_gradient(mesh::Gradients& into, const at::Tensor& dy) const {
  if (bias) into.add_sum(*bias, dy);
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
  fan_in_fan_out ? into.outer(weight, dy, x) : into.outer(weight, x, dy);
}

at::Tensor Linear::plain(const at::Tensor& x, const Call& call) const {
  const at::Tensor w = call.weights.get(weight), y = at::matmul(x, fan_in_fan_out ? w : w.t());
  at::Tensor sum = bias ? y + call.weights.get(*bias) : y;
  for (const PlacedAdapter& one : adapters) {
    const at::Tensor added = one.adapter->plain(x, call);
    int64_t begin = 0;
    for (int32_t i = 0; i < one.place; ++i) begin += call.weights.get({weight.first + i}).size(0);
    sum = sum + at::constant_pad_nd(added, {begin, sum.size(-1) - begin - added.size(-1)});
  }
  return sum;
}

int64_t Linear::in_width(const Call& call) const { return call.weights.get(weight).size(fan_in_fan_out ? 0 : 1); }
int64_t Linear::out_width(const Call& call) const { return call.weights.get(weight).size(fan_in_fan_out ? 1 : 0); }

std::vector<mesh::ParamId> Linear::parameters() const {
  std::vector<mesh::ParamId> all{weight};
  if (bias) all.push_back(*bias);
  for (const PlacedAdapter& one : adapters)
    for (const mesh::ParamId& id : one.adapter->parameters()) all.push_back(id);
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
}

}  // namespace cairn::model
