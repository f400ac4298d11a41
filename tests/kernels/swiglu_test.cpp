#include "kernels/swiglu.h"

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

at::Tensor plain_swiglu(const at::Tensor& gate_up) {
  const std::vector<at::Tensor> halves = gate_up.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

TEST(Swiglu, MatchesTheFormulaAndItsGradients) {
  for (const auto& [rows, ff] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {5, 16}, {67, 131}, {2, 896}}) {
    const at::Tensor gate_up = normal({rows, 2 * ff}, 1) * 3, dy = normal({rows, ff}, 2), y = at::empty({rows, ff}),
                     dgate_up = at::empty({rows, 2 * ff});
    const at::Tensor x = leaf(gate_up), expected = plain_swiglu(x);
    const at::Tensor gradient = gradients(expected, dy, {x})[0];
    with_threads([&] {
      swiglu(y, gate_up);
      expect_close(y, expected.detach(), 8, "y");
      y.zero_();
      swiglu_backward(dgate_up, dy, gate_up);
      expect_close(dgate_up, gradient, 16, "dgate_up");
      EXPECT_EQ(y.abs().sum().item<float>(), 0) << "y was not asked for";
      swiglu_backward(dgate_up, dy, gate_up, &y);
      expect_close(dgate_up, gradient, 16, "dgate_up with y");
      expect_close(y, expected.detach(), 8, "y again");
    });
    const at::Tensor in_place = gate_up.clone(), shared = dy.clone();
    swiglu_backward(in_place, shared, in_place, &shared);
    EXPECT_TRUE(at::equal(in_place, dgate_up));
    EXPECT_TRUE(at::equal(shared, y));
  }
}

TEST(Swiglu, ReferenceInDoubleIsExact) {
  const at::Tensor x = leaf(normal({3, 10}, 1)), dy = normal({3, 5}, 2, at::kDouble), y = at::empty({3, 5}, at::kDouble),
                   dx = at::empty({3, 10}, at::kDouble);
  const at::Tensor gradient = gradients(plain_swiglu(x), dy, {x})[0];
  swiglu_backward(dx, dy, x.detach(), &y);
  expect_close(dx, gradient, 16, "dgate_up");
  expect_close(y, plain_swiglu(x.detach()), 4, "y");
}

TEST(Swiglu, SurvivesLargeGatesAndKeepsNan) {
  const at::Tensor gate_up =
      at::tensor({-1000.0f, -90.0f, 90.0f, 1000.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f, 1.0f, 1.0f, 1.0f, 1.0f}).view({1, 10});
  const at::Tensor y = at::empty({1, 5});
  swiglu(y, gate_up);
  EXPECT_NEAR(y[0][0].item<float>(), 0, 1e-30);
  EXPECT_NEAR(y[0][1].item<float>(), 0, 1e-30);
  EXPECT_EQ(y[0][2].item<float>(), 90);
  EXPECT_EQ(y[0][3].item<float>(), 1000);
  EXPECT_TRUE(std::isnan(y[0][4].item<float>()));
}

TEST(Swiglu, RefusesShapesThatDoNotMatch) {
  const std::string error = error_of([] { swiglu(at::empty({2, 3}), at::empty({2, 5})); });
  EXPECT_NE(error.find("SwiGLU from [2, 5] to [2, 3]"), std::string::npos) << error;
}

}  // namespace
}  // namespace cairn::kernels
