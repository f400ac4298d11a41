// The Lorentz model of hyperbolic space of curvature -1: points x = (x_0, x_s) in the last dim, with <x, x> = -1 and x_0 > 0, where
// <x, y> = x_s y_s - x_0 y_0. Everything is differentiable.
#pragma once
#include <string_view>

#include <ATen/core/Tensor.h>

namespace cairn::model::lorentz {

// <x, y>, with the last dim kept as 1.
at::Tensor inner(const at::Tensor& x, const at::Tensor& y);
// The point with these space coordinates: x_0 = sqrt(1 + |x_s|^2).
at::Tensor lift(const at::Tensor& space);
// arccosh(-<x, y>), [...].
at::Tensor distance(const at::Tensor& x, const at::Tensor& y);
// Distances of all pairs of rows, [n, m].
at::Tensor distances(const at::Tensor& x /*[n, width]*/, const at::Tensor& y /*[m, width]*/);

// Where a linear layer z = W x + b ends on the hyperboloid: time = sigmoid(z_0) exp(log_scale) + 1.1, and space in the direction of z_s
// (Chen et al., "Fully Hyperbolic Neural Networks", arXiv:2105.14686).
at::Tensor project_linear(const at::Tensor& z, const at::Tensor& log_scale /*[1]*/);
// The Lorentzian centroid of rows: sum_j w_ij x_j / sqrt(|<., .>|). Graph convolutions and attention aggregate with it.
at::Tensor centroid(const at::Tensor& weights /*[n, m]*/, const at::Tensor& x /*[m, width]*/);
// The centroid of two points: a residual connection.
at::Tensor midpoint(const at::Tensor& x, const at::Tensor& y);
// (2 + 2 <q, k>) / scale + bias, [n, m].
at::Tensor attention_scores(const at::Tensor& q, const at::Tensor& k, double scale, double bias);

// The tangent vector at x that a Euclidean gradient stands for.
at::Tensor riemannian_gradient(const at::Tensor& x, const at::Tensor& gradient);
// The part of v that is tangent at x.
at::Tensor tangent(const at::Tensor& x, const at::Tensor& v);
// From x along a tangent vector, and the tangent vector at x that leads to y.
at::Tensor exponential(const at::Tensor& x, const at::Tensor& v);
at::Tensor logarithm(const at::Tensor& x, const at::Tensor& y);
// A tangent vector at x, carried along the geodesic to y.
at::Tensor transport(const at::Tensor& x, const at::Tensor& y, const at::Tensor& v);

// The largest |<x, x> + 1| of the points, in fp64.
double distance_to_manifold(const at::Tensor& x);
// Refuses points off the hyperboloid, and names the row.
void check_on_manifold(const at::Tensor& x, std::string_view what);

}  // namespace cairn::model::lorentz
