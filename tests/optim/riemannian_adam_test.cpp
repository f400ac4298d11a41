// Riemannian Adam stays on the hyperboloid, finds the minimum of a distance there, and is AdamW elsewhere.
#include <cmath>

#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "optim/needs.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace cairn::optim {
namespace {

OptimOptions riemannian() {
  OptimOptions options;
  options.kind = "riemannian_adam";
  return options;
}

at::Tensor lifted(const at::Tensor& space) { return at::cat(std::vector<at::Tensor>{(space.square().sum(1, true) + 1).sqrt(), space}, 1); }
double off_manifold(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble), squares = wide.square();
  return (squares.sum(1) - squares.select(1, 0) * 2 + 1).abs().max().item<double>();
}

// d/dx of arccosh(-<x, y>): with a = -<x, y>, it is (y_0, -y_s) / sqrt(a^2 - 1), the derivative of a over that.
at::Tensor distance_gradient(const at::Tensor& x, const at::Tensor& y, at::Tensor& distance) {
  at::Tensor turned = -y.clone();
  turned.select(1, 0).neg_();
  const at::Tensor a = (x * turned).sum(1, true).clamp_min(1 + 1e-7);
  distance = a.acosh();
  return turned / (a.square() - 1).sqrt();
}

TEST(RiemannianAdam, BringsPointsTogetherOnTheHyperboloid) {
  const at::Tensor x = lifted(at::randn({6, 4})), y = lifted(at::randn({6, 4})), gradient = at::empty_like(x);
  const auto rule = make_optimizer(riemannian(), {{.name = "x", .parameter = x, .gradient = gradient, .on_hyperboloid = true}});
  at::Tensor distance, first;
  for (int64_t step = 1; step <= 400; ++step) {
    gradient.copy_(distance_gradient(x, y, distance) * distance);  // of half the squared distance
    if (step == 1) first = distance.clone();
    rule->update(0, {.step = step, .learning_rate = 0.03});
    EXPECT_LT(off_manifold(x), 1e-4) << "step " << step;
  }
  EXPECT_GT(first.min().item<double>(), 0.1);
  EXPECT_LT(distance.max().item<double>(), 0.05);
}

TEST(RiemannianAdam, IsAdamwForOtherParameters) {
  const at::Tensor a = at::randn({5, 3}), b = a.clone(), gradient = at::randn({5, 3});
  const auto curved = make_optimizer(riemannian(), {{.name = "a", .parameter = a, .gradient = gradient}});
  const auto flat = make_optimizer({}, {{.name = "b", .parameter = b, .gradient = gradient}});
  for (int64_t step = 1; step <= 3; ++step) {
    curved->update(0, {.step = step, .learning_rate = 0.01});
    flat->update(0, {.step = step, .learning_rate = 0.01});
  }
  EXPECT_TRUE(at::equal(a, b));
}

TEST(RiemannianAdam, StatesItsNeeds) {
  EXPECT_TRUE(optimizer_needs("riemannian_adam").on_manifolds);
  EXPECT_FALSE(optimizer_needs("riemannian_adam").matrix_steps);
  EXPECT_FALSE(optimizer_needs("adamw").on_manifolds);
  EXPECT_TRUE(optimizer_needs("muon").matrix_steps && optimizer_needs("adafactor").matrix_steps);
}

}  // namespace
}  // namespace cairn::optim
