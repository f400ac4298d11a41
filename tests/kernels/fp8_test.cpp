#include "kernels/fp8.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "kernels/closeness.h"
#include "kernels/cross_entropy.h"

namespace cairn::kernels {
namespace {

struct Fp8Case {
  int64_t rows, columns;
  double size;  // of the values
};
constexpr Fp8Case kFp8Cases[] = {{1, 16, 1}, {5, 16, 1e-6}, {16, 48, 3e4}, {33, 64, 1e-30}, {130, 144, 0.02}, {7, 272, 1e30}};

double limit_of(Fp8 code) { return code == Fp8::e4m3 ? 448 : 57344; }

// The spacing of codes where a value lies, half of which is the most that rounding may change it by.
double spacing(double value, Fp8 code) {
  const int fraction = code == Fp8::e4m3 ? 3 : 2, least = code == Fp8::e4m3 ? -6 : -14;
  return std::ldexp(1.0, std::max(value == 0 ? least : std::ilogb(value), least) - fraction);
}

TEST(Fp8, CodesAreTheNearestUnderTheLeastPowerOfTwo) {
  for (const Fp8 code : {Fp8::e4m3, Fp8::e5m2})
    for (const Fp8Case& c : kFp8Cases) {
      const at::Tensor x = normal({c.rows, c.columns}, 1).mul_(c.size).to(at::kBFloat16);
      const Fp8Matrix made = to_fp8(x, code);
      const double factor = made.factor.item<double>(), largest = x.to(at::kDouble).abs().max().item<double>();
      int exponent = 0;
      EXPECT_EQ(std::frexp(factor, &exponent), 0.5);
      EXPECT_LE(largest, limit_of(code) * factor);
      EXPECT_GT(largest, limit_of(code) * factor / 2);
      const at::Tensor back = made.rows.to(at::kDouble).mul(factor), exact = x.to(at::kDouble);
      for (int64_t i = 0; i < c.rows; ++i)
        for (int64_t j = 0; j < c.columns; ++j) {
          const double value = exact[i][j].item<double>(), found = back[i][j].item<double>();
          ASSERT_LE(std::abs(found - value), spacing(value / factor, code) * factor / 2) << value << " is " << found;
        }
      EXPECT_TRUE(at::equal(from_fp8({.columns = made.columns, .factor = made.factor}, c.rows, at::kDouble), back));
      EXPECT_EQ(made.columns.size(1), (c.rows + 15) / 16 * 16);
      EXPECT_EQ(made.columns.slice(1, c.rows).to(at::kFloat).abs().sum().item<float>(), 0);
    }
}

TEST(Fp8, ValuesOfOneSizeHaveTheSameCodesAtEveryPowerOfTwo) {
  const at::Tensor x = normal({20, 32}, 1).to(at::kBFloat16);
  const Fp8Matrix made = to_fp8(x, Fp8::e4m3), larger = to_fp8(x * 1024, Fp8::e4m3);
  EXPECT_TRUE(at::equal(made.rows.view(at::kByte), larger.rows.view(at::kByte)));
  EXPECT_EQ(larger.factor.item<float>(), 1024 * made.factor.item<float>());
}

TEST(Fp8, NothingAndWhatIsNotFinite) {
  const Fp8Matrix none = to_fp8(at::zeros({4, 16}, at::kBFloat16), Fp8::e5m2);
  EXPECT_TRUE(std::isfinite(none.factor.item<float>()));
  EXPECT_EQ(from_fp8(none, 4, at::kFloat).abs().sum().item<float>(), 0);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const at::Tensor x = at::ones({4, 16}, at::kBFloat16);
    x[2][3] = bad;
    EXPECT_TRUE(std::isnan(to_fp8(x, Fp8::e4m3).factor.item<float>())) << bad;
  }
}

TEST(Fp8, GradientsOfACrossEntropyAreTheCodesOfTheGradient) {
  const int64_t rows = 5, vocab = 32;
  const at::Tensor logits = normal({rows, vocab}, 1), targets = at::arange(rows), scale = at::full({1}, 0.25f), loss = at::empty({rows}),
                   lse = at::empty({rows});
  targets[3].fill_(kIgnoreTarget);
  cross_entropy(loss, lse, logits, targets);
  const at::Tensor gradient = logits.clone();
  cross_entropy_backward(gradient, lse, targets, scale);
  const Fp8Matrix found = cross_entropy_to_fp8(logits, lse, targets, scale, scale.view(at::kInt)), expected = to_fp8(gradient, Fp8::e5m2);
  EXPECT_TRUE(at::equal(found.rows.view(at::kByte), expected.rows.view(at::kByte)));
  EXPECT_TRUE(at::equal(found.columns.view(at::kByte), expected.columns.view(at::kByte)));
}

TEST(Fp8, ProductsAreThoseOfWhatTheCodesStandFor) {
  for (const int64_t rows : {1, 16, 37}) {
    const int64_t in = 48, out = 32;
    const at::Tensor x = normal({rows, in}, 1).to(at::kBFloat16), w = normal({out, in}, 2).to(at::kBFloat16),
                     dy = normal({rows, out}, 3).mul_(1e-4).to(at::kBFloat16);
    const Fp8Matrix x8 = to_fp8(x, Fp8::e4m3), w8 = to_fp8(w, Fp8::e4m3), dy8 = to_fp8(dy, Fp8::e5m2);
    const at::Tensor ex = from_fp8(x8, rows, at::kDouble), ew = from_fp8(w8, out, at::kDouble), edy = from_fp8(dy8, rows, at::kDouble);
    const auto near = [](const at::Tensor& found, const at::Tensor& exact, double tolerance, const char* what) {
      EXPECT_LE((found.to(at::kDouble) - exact).norm().item<double>(), tolerance * exact.norm().item<double>()) << what;
    };
    const at::Tensor y = at::empty({rows, out}, at::kFloat), dx = at::empty({rows, in}, at::kFloat), dw = at::empty({out, in}, at::kFloat);
    linear(y, x8, w8);
    near(y, at::matmul(ex, ew.t()), 1e-6, "y");
    linear_backward_input(dx, dy8, w8);
    near(dx, at::matmul(edy, ew), 1e-6, "dx");
    linear_backward_weight(dw, dy8, x8);
    near(dw, at::matmul(edy.t(), ex), 1e-6, "dw");
    linear_backward_weight(dw, dy8, x8, /*accumulate=*/true);
    near(dw, at::matmul(edy.t(), ex) * 2, 1e-6, "dw twice");
    const at::Tensor onto = normal({rows, out}, 4).to(at::kBFloat16), low = at::empty_like(onto);
    linear(low, x8, w8, &onto);
    near(low, at::matmul(ex, ew.t()) + onto.to(at::kDouble), 4e-3, "onto");
    // And near to those of the matrices themselves: a product of random signs is off by about the roundings of one term.
    near(y, at::matmul(x.to(at::kDouble), w.to(at::kDouble).t()), 0.05, "of the matrices");
  }
}

}  // namespace
}  // namespace cairn::kernels
