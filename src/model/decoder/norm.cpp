#include "model/decoder/norm.h"

#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "kernels/aten.h"
#include "kernels/low_precision.h"
#include "kernels/rms_norm.h"
#include "model/decoder/plain_ops.h"

namespace cairn::model {
namespace {

// The precision of sums over x: its own, but at least fp32.
at::TensorOptions summing(const at::Tensor& x) { return kernels::is_half_precision(x) ? x.options().dtype(at::kFloat) : x.options(); }

// An input of libtorch's LayerNorm. On a GPU it computes in fp32 for any dtype, as long as all inputs have the same one; on a CPU it has to
// be given fp32.
at::Tensor for_layer_norm(const at::Tensor& one, const at::Tensor& x) {
  return x.is_cuda() ? one.to(x.scalar_type()) : kernels::widened(one);
}

}  // namespace

Norm::Result Norm::forward(const at::Tensor& x, const Call& call, at::Tensor* amax) const {
  const at::Tensor gain = call.weights.get(weight);
  if (kind == Kind::rms) {
    const at::Tensor y = at::empty_like(x), rstd = at::empty({x.numel() / x.size(-1)}, summing(x));
    kernels::rms_norm(y, rstd, x, gain, eps, amax);
    return {y, rstd};
  }
  const auto [y, mean, rstd] =
      at::native_layer_norm(for_layer_norm(x, x), {x.size(-1)}, for_layer_norm(gain, x), for_layer_norm(call.weights.get(*bias), x), eps);
  return {y.to(x.scalar_type()), at::stack({mean, rstd})};
}

Norm::Held Norm::hold(const Call& call) const {
  return {call.weights.get(weight).clone(), bias ? call.weights.get(*bias).clone() : at::Tensor()};
}

Norm::Result Norm::results_for(const at::Tensor& x) const {
  if (kind == Kind::rms) return {at::empty_like(x), at::empty({x.numel() / x.size(-1)}, summing(x))};
  std::vector<int64_t> shape{2};
  for (int64_t dim = 0; dim + 1 < x.dim(); ++dim) shape.push_back(x.size(dim));
  shape.push_back(1);
  return {at::empty_like(x), at::empty(shape, summing(x))};
}

void Norm::forward(const Result& into, const at::Tensor& x, const Held& held) const {
  if (kind == Kind::rms) return kernels::rms_norm(into.y, into.statistics, x, held.gain, eps);
  const auto [y, mean, rstd] =
      at::native_layer_norm(for_layer_norm(x, x), {x.size(-1)}, for_layer_norm(held.gain, x), for_layer_norm(held.shift, x), eps);
  into.y.copy_(y);
  into.statistics.copy_(at::stack({mean, rstd}));
}

void Norm::input_gradient(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics, const Call& call,
                          const at::Tensor* add, at::Tensor* amax) const {
  const at::Tensor gain = call.weights.get(weight);
  if (kind == Kind::rms) return kernels::rms_norm_backward_input(dx, dy, x, gain, statistics, add, amax);
  const auto [gradient, unused, unused_too] =
      at::native_layer_norm_backward(for_layer_norm(dy, x), for_layer_norm(x, x), {x.size(-1)}, statistics[0], statistics[1],
                                     for_layer_norm(gain, x), for_layer_norm(call.weights.get(*bias), x), {true, false, false});
  dx.copy_(add ? gradient + *add : gradient);
}

void Norm::weight_gradient(mesh::Gradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                           const Call& call) const {
  if (kind == Kind::rms) {
    const at::Tensor gradient = at::empty({x.size(-1)}, summing(dy));
    kernels::rms_norm_backward_weight(gradient, dy, x, statistics);
    into.add(weight, gradient);
    return;
  }
  // In fp32, because the results have the inputs' dtype and gradient sums must not be rounded to bf16.
  const auto [unused, gain, shift] = at::native_layer_norm_backward(kernels::widened(dy), kernels::widened(x), {x.size(-1)}, statistics[0],
                                                                    statistics[1], kernels::widened(call.weights.get(weight)),
                                                                    kernels::widened(call.weights.get(*bias)), {false, true, true});
  into.add(*bias, shift);
  into.add(weight, gain);
}

bool Norm::has_fused_backward(const at::Tensor& x) const { return kind == Kind::rms && kernels::has_fused_backward(x); }

at::Tensor Norm::backward(const Back& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics, const Call& call,
                          const at::Tensor* add) const {
  const at::Tensor gain = at::empty({x.size(-1)}, summing(dy));
  kernels::rms_norm_backward({into.dx, gain, into.y, into.amax}, dy, x, call.weights.get(weight), statistics, add);
  return gain;
}

at::Tensor Norm::plain(const at::Tensor& x, const Call& call) const {
  if (kind == Kind::rms) return plain_rms_norm(x, call.weights.get(weight), eps);
  const at::Tensor centred = x - x.mean(-1, /*keepdim=*/true);
  return centred * at::rsqrt(centred.square().mean(-1, /*keepdim=*/true) + eps) * call.weights.get(weight) + call.weights.get(*bias);
}

std::vector<mesh::ParamId> Norm::parameters() const {
  return bias ? std::vector<mesh::ParamId>{weight, *bias} : std::vector<mesh::ParamId>{weight};
}

}  // namespace cairn::model
