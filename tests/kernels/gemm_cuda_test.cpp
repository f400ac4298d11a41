// Products on a GPU in bf16, against double.
#include <gtest/gtest.h>

#include "kernels/closeness.h"
#include "kernels/device.h"
#include "kernels/gemm.h"

namespace cairn::kernels {
namespace {

struct ProductSizes {
  int64_t rows, in, out;
};
constexpr ProductSizes kMmaWarps[] = {{1, 1, 1}, {1, 8, 8}, {5, 3, 2}, {127, 65, 33}, {128, 256, 384}, {1000, 768, 2304}};

double relative(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

class GemmOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_use_cuda()) GTEST_SKIP() << "no GPU here";
  }
};

at::Tensor bf16_on_gpu(const at::Tensor& x) { return x.to(at::kBFloat16).cuda(); }
at::Tensor nothing(at::IntArrayRef sizes, at::ScalarType type) {
  return at::full(sizes, std::nan(""), at::TensorOptions().dtype(type).device(at::kCUDA));
}

TEST_F(GemmOnCuda, MatchesTheProductInDouble) {
  for (const auto& [rows, in, out] : kMmaWarps)
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      const double bound = type == at::kFloat ? 1e-5 : 4e-3;  // of bf16: one rounding
      const at::Tensor x = bf16_on_gpu(normal({rows, in}, 1)), w = bf16_on_gpu(normal({out, in}, 2)),
                       dy = bf16_on_gpu(normal({rows, out}, 3));
      const at::Tensor xd = x.to(at::kDouble), wd = w.to(at::kDouble), dyd = dy.to(at::kDouble);
      const at::Tensor y = nothing({rows, out}, type), dx = nothing({rows, in}, type), dw = nothing({out, in}, type);
      linear(y, x, w);
      linear_backward_input(dx, dy, w);
      linear_backward_weight(dw, dy, x);
      EXPECT_LT(relative(y, at::matmul(xd, wd.t())), bound) << rows << " " << in << " " << out;
      EXPECT_LT(relative(dx, at::matmul(dyd, wd)), bound);
      EXPECT_LT(relative(dw, at::matmul(dyd.t(), xd)), bound);
      linear_backward_input(dx, dy, w, true);
      linear_backward_weight(dw, dy, x, true);
      EXPECT_LT(relative(dx, 2 * at::matmul(dyd, wd)), 2 * bound);
      EXPECT_LT(relative(dw, 2 * at::matmul(dyd.t(), xd)), 2 * bound);
      const at::Tensor onto = normal({rows, out}, 4).to(type).cuda(), kept = onto.clone(), sum = nothing({rows, out}, type);
      linear(sum, x, w, &onto);
      EXPECT_TRUE(at::equal(onto, kept));
      EXPECT_LT(relative(sum, onto.to(at::kDouble) + at::matmul(xd, wd.t())), bound);
      linear(onto, x, w, &onto);
      EXPECT_LT(relative(onto, sum.to(at::kDouble)), bound) << "in place";
    }
}

TEST_F(GemmOnCuda, ReadsAndWritesSlicesOfAFusedBuffer) {
  const int64_t rows = 37, in = 24, out = 40;
  const at::Tensor inputs = bf16_on_gpu(normal({rows, 3 * in}, 1)), w = bf16_on_gpu(normal({out, in}, 2));
  const at::Tensor outputs = at::zeros({rows, 3 * out}, inputs.options());
  linear(outputs.narrow(1, out, out), inputs.narrow(1, in, in), w);
  EXPECT_LT(relative(outputs.narrow(1, out, out), at::matmul(inputs.narrow(1, in, in).to(at::kDouble), w.to(at::kDouble).t())), 4e-3);
  EXPECT_EQ(outputs.narrow(1, 0, out).abs().sum().item<float>() + outputs.narrow(1, 2 * out, out).abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace cairn::kernels
