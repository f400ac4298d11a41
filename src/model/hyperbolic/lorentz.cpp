#include "model/hyperbolic/lorentz.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::model::lorentz {
namespace {

constexpr double kLeast = 1e-7;  // of arguments whose derivative has no bound at 0
constexpr double kOffManifold = 1e-3;

at::Tensor time_of(const at::Tensor& x) { return x.narrow(-1, 0, 1); }
at::Tensor space_of(const at::Tensor& x) { return x.narrow(-1, 1, x.size(-1) - 1); }
at::Tensor joined_point(const at::Tensor& time, const at::Tensor& space) { return at::cat(std::vector<at::Tensor>{time, space}, -1); }

// <x_i, y_j> of all pairs.
at::Tensor inner_products(const at::Tensor& x, const at::Tensor& y) {
  return at::matmul(space_of(x), space_of(y).t()) - at::matmul(time_of(x), time_of(y).t());
}

at::Tensor arc_of(const at::Tensor& products) { return (-products).clamp_min(1 + kLeast).acosh(); }

// In double: the two halves of <sum, sum> cancel far from the origin.
at::Tensor normalized(const at::Tensor& sum) {
  const at::Tensor wide = sum.to(at::kDouble);
  return (wide / inner(wide, wide).abs().clamp_min(kLeast).sqrt()).to(sum.scalar_type());
}

}  // namespace

at::Tensor inner(const at::Tensor& x, const at::Tensor& y) {
  return (space_of(x) * space_of(y)).sum(-1, /*keepdim=*/true) - time_of(x) * time_of(y);
}

at::Tensor lift(const at::Tensor& space) { return joined_point((space.square().sum(-1, /*keepdim=*/true) + 1).sqrt(), space); }

at::Tensor distance(const at::Tensor& x, const at::Tensor& y) { return arc_of(inner(x, y)).squeeze(-1); }

at::Tensor distances(const at::Tensor& x, const at::Tensor& y) { return arc_of(inner_products(x, y)); }

at::Tensor project_linear(const at::Tensor& z, const at::Tensor& log_scale) {
  const at::Tensor time = at::sigmoid(time_of(z)) * at::exp(log_scale) + 1.1, space = space_of(z);
  const at::Tensor squares = space.square().sum(-1, /*keepdim=*/true).clamp_min(1e-8);
  return joined_point(time, space * ((time.square() - 1) / squares).sqrt());
}

at::Tensor centroid(const at::Tensor& weights, const at::Tensor& x) { return normalized(at::matmul(weights, x)); }

at::Tensor midpoint(const at::Tensor& x, const at::Tensor& y) { return normalized(x + y); }

at::Tensor attention_scores(const at::Tensor& q, const at::Tensor& k, double scale, double bias) {
  return (inner_products(q, k) * 2 + 2) / scale + bias;
}

at::Tensor tangent(const at::Tensor& x, const at::Tensor& v) { return v + inner(x, v) * x; }

at::Tensor riemannian_gradient(const at::Tensor& x, const at::Tensor& gradient) {
  return tangent(x, joined_point(-time_of(gradient), space_of(gradient)));
}

at::Tensor exponential(const at::Tensor& x, const at::Tensor& v) {
  const at::Tensor length = inner(v, v).clamp_min(kLeast * kLeast).sqrt();
  return lift(space_of(length.cosh() * x + length.sinh() / length * v));
}

at::Tensor logarithm(const at::Tensor& x, const at::Tensor& y) {
  const at::Tensor direction = tangent(x, y);
  return distance(x, y).unsqueeze(-1) * direction / inner(direction, direction).clamp_min(kLeast * kLeast).sqrt();
}

at::Tensor transport(const at::Tensor& x, const at::Tensor& y, const at::Tensor& v) {
  return v + inner(y, v) / (1 - inner(x, y)) * (x + y);
}

double distance_to_manifold(const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide = x.to(at::kDouble);
  return (inner(wide, wide) + 1).abs().max().item<double>();
}

void check_on_manifold(const at::Tensor& x, std::string_view what) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide = x.to(at::kDouble), off = (inner(wide, wide) + 1).abs().squeeze(-1), bad = off.le(kOffManifold).logical_not();
  if (!bad.any().item<bool>()) return;
  const int64_t row = bad.to(at::kInt).argmax().item<int64_t>();
  base::fail_input("{}: row {} is no point of the hyperboloid, |<x, x> + 1| = {:.3g}. Start from points on it.", what, row,
                   off[row].item<double>());
}

}  // namespace cairn::model::lorentz
