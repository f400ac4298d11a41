// The Lorentz model of hyperbolic space: its operations against closed forms, and graph networks in it.
#include "model/hyperbolic/lorentz.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "base/random.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "model/hyperbolic/lorentz_graph.h"

namespace cairn::model {
namespace {

at::Tensor some_points(int64_t n, int64_t width, double size = 0.8) { return lorentz::lift(at::randn({n, width - 1}, at::kDouble) * size); }

// On the hyperbola of one space coordinate, points are (cosh t, sinh t), and their distance is the difference of t.
at::Tensor on_line(double t) { return at::scalar_tensor(t, at::kDouble).view({1}).sinh().view({1, 1}); }

TEST(Lorentz, DistancesOnALineAreDifferences) {
  const at::Tensor a = lorentz::lift(on_line(0.7)), b = lorentz::lift(on_line(-1.6));
  EXPECT_NEAR(lorentz::distance(a, b).item<double>(), 2.3, 1e-9);
  EXPECT_NEAR(lorentz::distances(a, b)[0][0].item<double>(), 2.3, 1e-9);
  EXPECT_NEAR(lorentz::inner(a, a).item<double>(), -1, 1e-12);
}

TEST(Lorentz, ExponentialAndLogarithmAreInverse) {
  const at::Tensor x = some_points(20, 5), y = some_points(20, 5);
  const at::Tensor v = lorentz::logarithm(x, y);
  EXPECT_LT(lorentz::inner(x, v).abs().max().item<double>(), 1e-9);
  EXPECT_LT((lorentz::inner(v, v).sqrt().squeeze(-1) - lorentz::distance(x, y)).abs().max().item<double>(), 1e-8);
  EXPECT_LT((lorentz::exponential(x, v) - y).abs().max().item<double>(), 1e-7);
}

TEST(Lorentz, TransportKeepsProductsAndTangency) {
  const at::Tensor x = some_points(20, 6), y = some_points(20, 6);
  const at::Tensor v = lorentz::tangent(x, at::randn({20, 6}, at::kDouble)), w = lorentz::tangent(x, at::randn({20, 6}, at::kDouble));
  const at::Tensor moved = lorentz::transport(x, y, v), other = lorentz::transport(x, y, w);
  EXPECT_LT(lorentz::inner(y, moved).abs().max().item<double>(), 1e-9);
  EXPECT_LT((lorentz::inner(moved, other) - lorentz::inner(v, w)).abs().max().item<double>(), 1e-8);
}

TEST(Lorentz, LayersAndCentroidsEndOnTheManifold) {
  const at::Tensor z = at::randn({30, 7}), scale = at::full({1}, std::log(10.0));
  const at::Tensor points = lorentz::project_linear(z, scale);
  EXPECT_LT(lorentz::distance_to_manifold(points), 1e-4);
  EXPECT_GE(points.select(1, 0).min().item<double>(), 1.1);
  EXPECT_LT(lorentz::distance_to_manifold(lorentz::centroid(at::rand({9, 30}), points)), 1e-4);
  EXPECT_LT(lorentz::distance_to_manifold(lorentz::midpoint(points, points.flip(0))), 1e-4);
}

TEST(Lorentz, TheMidpointIsInTheMiddle) {
  const at::Tensor x = some_points(10, 4), y = some_points(10, 4), m = lorentz::midpoint(x, y), whole = lorentz::distance(x, y);
  EXPECT_LT((lorentz::distance(x, m) - whole / 2).abs().max().item<double>(), 1e-6);
  EXPECT_LT((lorentz::distance(y, m) - whole / 2).abs().max().item<double>(), 1e-6);
}

TEST(Lorentz, AttentionPrefersWhatIsNear) {
  const at::Tensor q = some_points(6, 4), scores = lorentz::attention_scores(q, q, 2.0, 0.25);
  EXPECT_LT((scores.diagonal() - 0.25).abs().max().item<double>(), 1e-9);
  const at::Tensor far = lorentz::distances(q, q);
  EXPECT_LT((scores - (far.cosh() * -2 + 2) / 2 - 0.25).abs().max().item<double>(), 1e-5);
}

// The Riemannian gradient of a distance has length 1.
TEST(Lorentz, RiemannianGradientsAreThoseOfTheSpace) {
  const at::Tensor x = some_points(8, 5).requires_grad_(), y = some_points(8, 5);
  at::Tensor gradient;
  {
    const at::AutoGradMode record(true);
    gradient = torch::autograd::grad({lorentz::distance(x, y).sum()}, {x})[0];
  }
  const at::Tensor own = lorentz::riemannian_gradient(x.detach(), gradient);
  EXPECT_LT(lorentz::inner(x.detach(), own).abs().max().item<double>(), 1e-8);
  EXPECT_LT((lorentz::inner(own, own) - 1).abs().max().item<double>(), 1e-5);
}

TEST(Lorentz, RefusesPointsOffTheManifold) {
  at::Tensor x = some_points(5, 4);
  lorentz::check_on_manifold(x, "points");
  x[3][0].add_(0.5);
  try {
    lorentz::check_on_manifold(x, "points");
    FAIL() << "row 3 is off";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("points: row 3 is no point of the hyperboloid"));
  }
}

TEST(LorentzGraph, BeginsOnTheManifold) {
  const auto graph = make_lorentz_graph({.nodes = 7, .width = 5, .layers = 2, .classes = 3, .edges = {{0, 1}, {1, 2}}});
  const mesh::FlatLayout layout = graph->layout();
  const at::Tensor flat = at::empty({layout.elements});
  initialize_parameters(*graph, flat, base::Random(2));
  EXPECT_LT(lorentz::distance_to_manifold(layout.view(flat, {0})), 1e-6);
  const at::Tensor weights = graph->make_buffers(at::kFloat).at("graph.weights");
  EXPECT_FLOAT_EQ(weights[1][0].item<float>(), 1.0f / 3);
  EXPECT_FLOAT_EQ(weights[5][5].item<float>(), 1);
}

TEST(LorentzGraph, ReadsEdgesAndNamesBadLines) {
  const harness::ScratchFolder scratch;
  EXPECT_EQ(read_edges(scratch.file("good", "0 1\n\n2\t3 \n").string(), 4), (GraphEdges{{0, 1}, {2, 3}}));
  const auto error_of = [&](const std::string& text) {
    try {
      read_edges(scratch.file("bad", text).string(), 4);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of("0 1\n2 x\n"), testing::HasSubstr("line 2: not two nodes"));
  EXPECT_THAT(error_of("0 1 2\n"), testing::HasSubstr("line 1: not two nodes"));
  EXPECT_THAT(error_of("0 4\n"), testing::HasSubstr("nodes 0 and 4 of a graph of 4"));
}

}  // namespace
}  // namespace cairn::model
