#include "kernels/gemm.h"

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

struct GemmShape {
  int64_t rows, in, out;
};
constexpr GemmShape kGemmShapes[] = {{1, 1, 1}, {1, 320, 7}, {5, 3, 2}, {17, 31, 63}, {129, 65, 33}, {2, 1, 257}, {0, 3, 4}, {3, 0, 4}};

TEST(Gemm, MatchesTheProductInDouble) {
  for (const auto& [rows, in, out] : kGemmShapes) {
    const at::Tensor x = normal({rows, in}, 1), w = normal({out, in}, 2), y = normal({rows, out}, 3);
    linear(y, x, w);
    expect_close(y, at::matmul(wide(x), wide(w).t()), 4 + 2 * std::sqrt(in), "y");
  }
}

TEST(Gemm, StartsFromAnotherMatrixOrFromItsOwn) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16})
    for (const auto& [rows, in, out] : kGemmShapes) {
      const at::Tensor x = normal({rows, in}, 1, type), w = normal({out, in}, 2, type), onto = normal({rows, out}, 3, type);
      const at::Tensor y = at::full({rows, out}, std::nan(""), onto.options()), before = onto.clone();
      const at::Tensor expected = wide(onto) + at::matmul(wide(x), wide(w).t());
      const double roundings = type == at::kBFloat16 ? std::ldexp(1, 44) : 4 + 2 * std::sqrt(in);  // of double: one of bf16
      linear(y, x, w, &onto);
      EXPECT_TRUE(at::equal(onto, before));
      expect_close(y, expected, roundings, "y");
      linear(onto, x, w, &onto);
      expect_close(onto, expected, roundings, "in place");
    }
}

TEST(Gemm, GradientsAreThoseOfAutograd) {
  for (const auto& [rows, in, out] : kGemmShapes) {
    const at::Tensor x = normal({rows, in}, 1), w = normal({out, in}, 2), dy = normal({rows, out}, 3);
    const at::Tensor xd = leaf(x), wd = leaf(w);
    const std::vector<at::Tensor> expected = gradients(at::matmul(xd, wd.t()), dy, {xd, wd});
    for (bool accumulate : {false, true}) {
      const at::Tensor dx = normal({rows, in}, 4), dw = normal({out, in}, 5);
      const at::Tensor dx_before = wide(dx) * accumulate, dw_before = wide(dw) * accumulate;
      linear_backward_input(dx, dy, w, accumulate);
      linear_backward_weight(dw, dy, x, accumulate);
      expect_close(dx, dx_before + expected[0], 4 + 2 * std::sqrt(out), "dx");
      expect_close(dw, dw_before + expected[1], 4 + 2 * std::sqrt(rows), "dw");
    }
  }
}

TEST(Gemm, ReadsAndWritesSlicesOfAFusedBuffer) {
  const int64_t rows = 13, in = 7, out = 5;
  const at::Tensor inputs = normal({rows, 3 * in}, 1), outputs = at::zeros({rows, 3 * out}), w = normal({out, in}, 2);
  const at::Tensor x = inputs.narrow(1, in, in), y = outputs.narrow(1, out, out);
  linear(y, x, w);
  expect_close(y, at::matmul(wide(x), wide(w).t()), 10, "y");
  EXPECT_EQ(outputs.narrow(1, 0, out).abs().sum().item<float>(), 0) << "wrote before its columns";
  EXPECT_EQ(outputs.narrow(1, 2 * out, out).abs().sum().item<float>(), 0) << "wrote behind its columns";
  const at::Tensor dx = inputs.narrow(1, 2 * in, in), dw = at::empty({out, in});
  linear_backward_input(dx, y, w);
  linear_backward_weight(dw, y, x);
  expect_close(dx, at::matmul(wide(y), wide(w)), 10, "dx");
  expect_close(dw, at::matmul(wide(y).t(), wide(x)), 20, "dw");
}

TEST(Gemm, TakesOtherTypesAndLayouts) {
  const at::Tensor x = normal({6, 4}, 1, at::kDouble), w = normal({4, 3}, 2, at::kDouble).t(), y = at::empty({6, 3}, at::kDouble);
  linear(y, x, w);
  expect_close(y, at::matmul(x, w.t()), 4, "y");
}

TEST(Gemm, RefusesShapesThatDoNotMatch) {
  const std::string error = error_of([] { linear(at::empty({2, 3}), at::empty({2, 5}), at::empty({3, 4})); });
  EXPECT_NE(error.find("weight [3, 4] from [2, 5] to [2, 3]"), std::string::npos) << error;
}

}  // namespace
}  // namespace cairn::kernels
