#include "kernels/adamw.h"

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

// Three steps of the published rule, in double, written out element by element.
at::Tensor plain_adamw(const at::Tensor& start, const std::vector<at::Tensor>& gradients, AdamwStep step, double factor) {
  const at::Tensor p = wide(start).clone();
  for (int64_t i = 0; i < p.numel(); ++i) {
    double x = p[i].item<double>(), m = 0, v = 0;
    for (size_t t = 0; t < gradients.size(); ++t) {
      const double g = gradients[t][i].item<double>() * factor;
      m = step.beta1 * m + (1 - step.beta1) * g;
      v = step.beta2 * v + (1 - step.beta2) * g * g;
      const double mhat = m / (1 - std::pow(step.beta1, t + 1)), vhat = v / (1 - std::pow(step.beta2, t + 1));
      x -= step.learning_rate * (mhat / (std::sqrt(vhat) + step.eps) + step.weight_decay * x);
    }
    p[i] = x;
  }
  return p;
}

TEST(Adamw, FollowsThePublishedRule) {
  const at::Tensor factor = at::scalar_tensor(0.5f);
  for (at::ScalarType type : {at::kFloat, at::kDouble})
    for (int64_t n : {1, 17, 1031}) {
      const at::Tensor p = normal({n}, 1, type), m = at::zeros({n}, type), v = at::zeros({n}, type);
      const std::vector<at::Tensor> g = {normal({n}, 2, type), normal({n}, 3, type), normal({n}, 4, type)};
      AdamwStep step{.learning_rate = 0.01,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-6,
                     .weight_decay = 0.1,
                     .gradient_scale = 3,
                     .gradient_factor = &factor};
      const at::Tensor expected = plain_adamw(p, g, step, 1.5);
      for (size_t t = 0; t < g.size(); ++t) {
        step.step = static_cast<int64_t>(t) + 1;
        adamw(p, m, v, g[t], step);
      }
      expect_close(p, expected, 8, "p");
    }
}

TEST(Adamw, FastAndReferenceKeepTheSameMoments) {
  const at::Tensor p = normal({40001}, 1), m = normal({40001}, 2), v = normal({40001}, 3).abs(), g = normal({40001}, 4);
  const at::Tensor pd = wide(p), md = wide(m), vd = wide(v), gd = wide(g);
  const AdamwStep step{.weight_decay = 0.1, .step = 7};
  reference::adamw(pd, md, vd, gd, step);
  with_threads([&] {
    const at::Tensor p1 = p.clone(), m1 = m.clone(), v1 = v.clone();
    adamw(p1, m1, v1, g, step);
    expect_close(p1, pd, 2, "p");
    expect_close(m1, md, 2, "m");
    expect_close(v1, vd, 2, "v");
  });
}

TEST(Adamw, RefusesPiecesOfUnequalLengthAndStepZero) {
  const at::Tensor a = at::zeros({3}), b = at::zeros({4});
  EXPECT_NE(error_of([&] { adamw(a, a, b, a, {}); }).find("pieces of 3, 3, 4 and 3 elements"), std::string::npos);
  EXPECT_NE(error_of([&] { adamw(a, a, a, a, {.step = 0}); }).find("steps count from 1"), std::string::npos);
}

TEST(SumOfSquares, IsExactToDoubleAndTheSameForEveryThreadCount) {
  for (int64_t n : {0, 1, 16, 16383, 16385, 100003}) {
    const at::Tensor x = normal({n}, 5);
    std::vector<double> sums;
    with_threads([&] { sums.push_back(sum_of_squares(x).item<double>()); });
    EXPECT_EQ(sums[0], sums[1]);
    EXPECT_NEAR(sums[0], at::sum(wide(x) * wide(x)).item<double>(), 1e-12 * static_cast<double>(n + 1));
  }
}

TEST(SumOfSquares, IsExactOfBf16Too) {
  for (const int64_t n : {int64_t{0}, int64_t{5}, int64_t{1} << 20, (int64_t{2} << 20) + 3}) {
    const at::Tensor x = normal({n}, 5).to(at::kBFloat16);
    EXPECT_NEAR(sum_of_squares(x).item<double>(), at::sum(wide(x) * wide(x)).item<double>(), 1e-12 * static_cast<double>(n + 1));
  }
}

TEST(SumOfSquares, OfSeveralIsThatOfAll) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> all{normal({100003}, 5).to(type), normal({0}, 5).to(type), normal({1}, 6).to(type),
                                      normal({777}, 7).to(type)};
    const at::Tensor joined = at::cat(all);
    EXPECT_NEAR(sum_of_squares(all).item<double>(), at::sum(wide(joined) * wide(joined)).item<double>(), 1e-7);
    EXPECT_EQ(sum_of_squares(std::span(all).first(1)).item<double>(), sum_of_squares(all[0]).item<double>());
  }
}

}  // namespace
}  // namespace cairn::kernels
