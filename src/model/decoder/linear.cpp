// Linear layers with LoRA adapters and fp8.
//
// LoRA (arXiv:2106.09685): y = x w^T + scale (x a^T) b^T with a [rank, in], b [out, rank]. With h = x a^T:
//   dx += scale (dy b) a,   db = scale dy^T h,   da = scale (dy b)^T x
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
#include "mesh/box.h"
#include "model/card.h"
#include "model/decoder/fp8_linear.h"

namespace cairn::model {
namespace {

// x a^T [rows, rank].
at::Tensor narrowed(const at::Tensor& x, const Linear::LowRank& one, const Call& call) {
  const at::Tensor a = call.weights.get(one.a), h = at::empty({x.size(0), a.size(0)}, x.options());
  kernels::linear(h, x, a);
  return h;
}

// The output columns that an adapter adds to.
mesh::Interval outputs_of(const Linear& linear, const Linear::LowRank& one, const Call& call) {
  int64_t begin = 0;
  for (int32_t i = 0; i < one.place; ++i) begin += call.weights.get({linear.weight.first + i}).size(0);
  return {begin, begin + call.weights.get(one.b).size(0)};
}

at::Tensor outputs(const at::Tensor& y, const mesh::Interval& of) { return y.narrow(1, of.begin, of.length()); }

// The gradient of x a^T: scale dy b [rows, rank].
at::Tensor narrowed_gradient(const Linear& linear, const at::Tensor& dy, const Linear::LowRank& one, const Call& call) {
  const at::Tensor b = call.weights.get(one.b), dh = at::empty({dy.size(0), b.size(1)}, dy.options());
  kernels::linear_backward_input(dh, outputs(dy, outputs_of(linear, one, call)), b);
  return dh.mul_(one.scale);
}

}  // namespace

bool Linear::is_fp8(const Call& call) const { return call.fp8() && call.fp8()->of(weight); }

std::optional<at::Tensor> Linear::bare_weight(const Call& call) const {
  if (bias || fan_in_fan_out || !low_rank.empty() || is_fp8(call)) return {};
  return call.weights.get(weight);
}

std::optional<Linear::Fp8Operands> Linear::fp8_operands(const at::Tensor& x, const Call& call, Operand* made) const {
  if (bias || fan_in_fan_out || !low_rank.empty() || !is_fp8(call)) return {};
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

void Linear::forward(const at::Tensor& y, const at::Tensor& x, const Call& call, Operand* made, kernels::Fp8Matrix* weight_codes) const {
  product(y, x, call, nullptr, made, weight_codes);
  add_bias(y, call);
}

void Linear::product(const at::Tensor& y, const at::Tensor& x, const Call& call, const at::Tensor* onto, Operand* made,
                     kernels::Fp8Matrix* weight_codes) const {
  if (is_fp8(call)) {
    const Fp8Operands codes = quantize_operands(x, call, made, weight_codes);
    if (fan_in_fan_out && onto) y.copy_(*onto);
    fan_in_fan_out ? kernels::linear_backward_input(y, codes.x, codes.w, onto != nullptr) : kernels::linear(y, codes.x, codes.w, onto);
    return;
  }
  const at::Tensor w = call.weights.get(weight);
  if (fan_in_fan_out && onto) y.copy_(*onto);
  fan_in_fan_out ? kernels::linear_backward_input(y, x, w, onto != nullptr) : kernels::linear(y, x, w, onto);
  for (const LowRank& one : low_rank)
    outputs(y, outputs_of(*this, one, call)).addmm_(narrowed(x, one, call), call.weights.get(one.b).t(), 1, one.scale);
}

void Linear::add_bias(const at::Tensor& y, const Call& call) const {
  if (bias) y.add_(call.weights.get(*bias));
}

void Linear::input_gradient(const at::Tensor& dx, const at::Tensor& dy, const Call& call, Operand* made,
                            kernels::Fp8Matrix* weight_codes) const {
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
  for (const LowRank& one : low_rank)
    kernels::linear_backward_input(dx, narrowed_gradient(*this, dy, one, call), call.weights.get(one.a), /*accumulate=*/true);
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
  for (const LowRank& one : low_rank) {
    into.outer(one.b, narrowed(x, one, call).mul_(one.scale), outputs(dy, outputs_of(*this, one, call)));
    into.outer(one.a, x, narrowed_gradient(*this, dy, one, call));
  }
  fan_in_fan_out ? into.outer(weight, dy, x) : into.outer(weight, x, dy);
}

at::Tensor Linear::plain(const at::Tensor& x, const Call& call) const {
  const at::Tensor w = call.weights.get(weight), y = at::matmul(x, fan_in_fan_out ? w : w.t());
  at::Tensor sum = bias ? y + call.weights.get(*bias) : y;
  for (const LowRank& one : low_rank) {
    const at::Tensor added = at::matmul(at::matmul(x, call.weights.get(one.a).t()), call.weights.get(one.b).t()) * one.scale;
    const mesh::Interval of = outputs_of(*this, one, call);
    sum = sum + at::constant_pad_nd(added, {of.begin, sum.size(-1) - of.end});
  }
  return sum;
}

int64_t Linear::in_width(const Call& call) const { return call.weights.get(weight).size(fan_in_fan_out ? 0 : 1); }
int64_t Linear::out_width(const Call& call) const { return call.weights.get(weight).size(fan_in_fan_out ? 1 : 0); }

std::vector<mesh::ParamId> Linear::parameters() const {
  std::vector<mesh::ParamId> all{weight};
  if (bias) all.push_back(*bias);
  for (const LowRank& one : low_rank) all.insert(all.end(), {one.a, one.b});
  return all;
}

void Linear::describe(BlockOp& operation) const {
  operation.kind = BlockOp::Kind::product;
  operation.parameters = parameters();
  operation.fan_in_fan_out = fan_in_fan_out;
  for (const LowRank& one : low_rank) {
    operation.adapted.push_back(one.place);
    operation.adapter_scale = one.scale;
  }
}

}  // namespace cairn::model
