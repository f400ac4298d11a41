#include "kernels/rms_norm.h"

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

struct NormShape {
  int64_t rows, embed;
};
constexpr NormShape kNormShapes[] = {{1, 1}, {1, 17}, {3, 31}, {65, 64}, {131, 320}, {5, 257}};
constexpr double kEps = 1e-5;

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight) { return x / at::sqrt(at::mean(x * x, -1, true) + kEps) * weight; }

TEST(RmsNorm, MatchesTheFormulaInDouble) {
  for (const auto& [rows, embed] : kNormShapes) {
    const at::Tensor x = normal({rows, embed}, 1), weight = normal({embed}, 2), y = at::empty({rows, embed}), rstd = at::empty({rows});
    with_threads([&] {
      rms_norm(y, rstd, x, weight, kEps);
      expect_close(y, plain_norm(wide(x), wide(weight)), 8, "y");
      expect_close(rstd, 1 / at::sqrt(at::mean(wide(x) * wide(x), -1) + kEps), 8, "rstd");
    });
  }
}

TEST(RmsNorm, AddsTheResidualFirst) {
  for (const auto& [rows, embed] : kNormShapes) {
    const at::Tensor x = normal({rows, embed}, 1), r = normal({rows, embed}, 2), weight = normal({embed}, 3);
    const at::Tensor expected = wide(x) + wide(r), y = at::empty({rows, embed}), rstd = at::empty({rows}), sum = at::empty({rows, embed});
    add_rms_norm(y, rstd, sum, x, r, weight, kEps);
    expect_close(sum, expected, 1, "sum");
    expect_close(y, plain_norm(expected, wide(weight)), 8, "y");
    add_rms_norm(y, rstd, x, x, r, weight, kEps);  // in place
    EXPECT_TRUE(at::equal(x, sum));
  }
}

TEST(RmsNorm, GradientsAreThoseOfAutograd) {
  for (const auto& [rows, embed] : kNormShapes) {
    const at::Tensor x = normal({rows, embed}, 1), weight = normal({embed}, 2), dy = normal({rows, embed}, 3),
                     add = normal({rows, embed}, 4);
    const at::Tensor xd = leaf(x), wd = leaf(weight), y = at::empty({rows, embed}), rstd = at::empty({rows}), dx = at::empty({rows, embed});
    const std::vector<at::Tensor> expected = gradients(plain_norm(xd, wd), dy, {xd, wd});
    rms_norm(y, rstd, x, weight, kEps);
    rms_norm_backward_input(dx, dy, x, weight, rstd);
    expect_close(dx, expected[0], 32, "dx");
    rms_norm_backward_input(dx, dy, x, weight, rstd, &add);
    expect_close(dx, expected[0] + add, 32, "dx + add");
    for (bool accumulate : {false, true}) {
      const at::Tensor dw = normal({embed}, 5), before = wide(dw) * accumulate;
      rms_norm_backward_weight(dw, dy, x, rstd, accumulate);
      expect_close(dw, before + expected[1], 8 + 2 * std::sqrt(rows), "dw");
    }
  }
}

TEST(RmsNorm, ReferenceInDoubleIsExact) {
  const at::Tensor x = leaf(normal({7, 19}, 1)), weight = leaf(normal({19}, 2)), dy = normal({7, 19}, 3, at::kDouble);
  const std::vector<at::Tensor> expected = gradients(plain_norm(x, weight), dy, {x, weight});
  const at::Tensor xv = x.detach(), wv = weight.detach(), y = at::empty_like(xv), rstd = at::empty({7}, at::kDouble),
                   dx = at::empty_like(xv), dw = at::empty_like(wv);
  rms_norm(y, rstd, xv, wv, kEps);
  rms_norm_backward_input(dx, dy, xv, wv, rstd);
  rms_norm_backward_weight(dw, dy, xv, rstd);
  expect_close(y, plain_norm(xv, wv), 16, "y");
  expect_close(dx, expected[0], 64, "dx");
  expect_close(dw, expected[1], 64, "dw");
}

TEST(RmsNorm, WeightGradientDoesNotDependOnTheThreadCount) {
  const at::Tensor x = normal({517, 200}, 1), dy = normal({517, 200}, 2), rstd = normal({517}, 3).abs();
  std::vector<at::Tensor> results;
  with_threads([&] {
    results.push_back(at::empty({200}));
    rms_norm_backward_weight(results.back(), dy, x, rstd);
  });
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST(RmsNorm, RefusesAWeightOfAnotherWidth) {
  const std::string error = error_of([] { rms_norm(at::empty({2, 8}), at::empty({2}), at::empty({2, 8}), at::empty({4}), kEps); });
  EXPECT_NE(error.find("a norm of [2, 8] by a weight of 4"), std::string::npos) << error;
}

}  // namespace
}  // namespace cairn::kernels
