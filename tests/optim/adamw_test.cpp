#include "optim/adamw.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "optim/bf16_optimizer.h"
#include "optim/clip.h"
#include "optim/options.h"

namespace cairn::optim {
namespace {

TEST(Adamw, FollowsTheFormulaForThreeSteps) {
  const OptimOptions options{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.1};
  const at::Tensor matrix = at::tensor({1.f, -2.f, 3.f, 4.f}).view({2, 2}), gain = at::tensor({0.5f});
  const at::Tensor matrix_gradient = at::tensor({0.1f, 0.2f, -0.3f, 0.f}).view({2, 2}), gain_gradient = at::tensor({-1.f});
  const auto rule = make_adamw(options, {{"w", matrix, matrix_gradient, true}, {"g", gain, gain_gradient, false}});
  // The rule written out for one element each, in double.
  double p[2] = {1, 0.5}, m[2] = {0, 0}, v[2] = {0, 0};
  const double g[2] = {0.05, -0.5};  // times the factor 0.5
  const at::Tensor factor = at::tensor(0.5f);
  for (int64_t step = 1; step <= 3; ++step) {
    for (int64_t piece : {0, 1}) rule->update(piece, {.step = step, .learning_rate = 0.01, .gradient_factor = &factor});
    for (int i = 0; i < 2; ++i) {
      m[i] = 0.8 * m[i] + 0.2 * g[i];
      v[i] = 0.9 * v[i] + 0.1 * g[i] * g[i];
      const double mean = m[i] / (1 - std::pow(0.8, step)), square = v[i] / (1 - std::pow(0.9, step));
      p[i] -= 0.01 * (mean / (std::sqrt(square) + 1e-6) + (i == 0 ? 0.1 * p[i] : 0));
    }
  }
  EXPECT_NEAR(matrix[0][0].item<float>(), p[0], 1e-6);
  EXPECT_NEAR(gain[0].item<float>(), p[1], 1e-6);
}

TEST(Adamw, NamesItsStateByParameter) {
  const auto rule = make_adamw({}, {{"w", at::zeros({2, 3}), at::zeros({2, 3}), true}});
  const mesh::NamedTensors state = rule->state();
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].name, "exp_avg.w");
  EXPECT_EQ(state[1].name, "exp_avg_sq.w");
  EXPECT_EQ(state[0].tensor.sizes(), (at::IntArrayRef{2, 3}));
}

// Everything in bf16, as PyTorch's fused rule has it: each step computes in fp32 and rounds parameter and moments once, to the nearest.
TEST(Adamw, RoundsWhatIsKeptInBf16OnceAStep) {
  const OptimOptions options{.beta2 = 0.9, .moments = StateDtype::bf16, .rounding = Rounding::nearest, .weight_decay = 0.1};
  const at::Tensor kept = at::tensor({1.f, -2.f, 0.75f}).to(at::kBFloat16), gradient = at::tensor({0.1f, 0.3f, -1e-4f}).to(at::kBFloat16);
  const auto rule = make_bf16_optimizer(options, {{"w", kept, gradient, true}}, base::Random(1));
  const auto rounded = [](double x) { return static_cast<double>(static_cast<float>(c10::BFloat16(static_cast<float>(x)))); };
  double p[3] = {1, -2, 0.75}, m[3] = {}, v[3] = {};
  for (int64_t step = 1; step <= 3; ++step) {
    rule->update(0, {.step = step, .learning_rate = 0.02});
    for (int64_t i = 0; i < 3; ++i) {
      const double g = gradient[i].item<double>(), mean = 0.9 * m[i] + 0.1 * g, square = 0.9 * v[i] + 0.1 * g * g;
      p[i] = rounded(p[i] * (1 - 0.02 * 0.1) -
                     0.02 * mean / (1 - std::pow(0.9, step)) / (std::sqrt(square / (1 - std::pow(0.9, step))) + 1e-8));
      m[i] = rounded(mean), v[i] = rounded(square);
      EXPECT_EQ(kept[i].item<double>(), p[i]) << "element " << i << ", step " << step;
    }
  }
  for (const mesh::NamedTensor& one : rule->state()) EXPECT_EQ(one.tensor.scalar_type(), at::kBFloat16) << one.name;
}

// The spacing of bf16 at 1 is 2^-7: an update of a tenth of that is lost to the nearest, and kept on the average otherwise.
TEST(Adamw, RoundingToTheNearestLosesSmallUpdates) {
  const auto mean_after = [](Rounding rounding) {
    const at::Tensor kept = at::ones({1000}, at::kBFloat16), gradient = at::ones({1000});
    const auto rule = make_bf16_optimizer({.rounding = rounding}, {{"w", kept, gradient, false}}, base::Random(3));
    for (int64_t step = 1; step <= 10; ++step) rule->update(0, {.step = step, .learning_rate = 0.1 / 128});
    return kept.to(at::kFloat).mean().item<double>();
  };
  EXPECT_EQ(mean_after(Rounding::nearest), 1);
  EXPECT_NEAR(mean_after(Rounding::stochastic), 1 - 1.0 / 128, 1e-3);
}

TEST(Adamw, AloneKeepsMomentsInBf16) {
  try {
    (void)make_optimizer({.kind = "muon", .moments = StateDtype::bf16}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what())
            .find("optim.moments = bf16: optim.kind = muon keeps its state in fp32. Leave optim.moments out, or use optim.kind = adamw."),
        std::string::npos)
        << error.what();
  }
}

TEST(Clip, BringsTheNormToTheLimitAndLeavesSmallOnesAlone) {
  const Clip large = clip(at::tensor(100.0, at::kDouble), 1.0, 2.0);
  EXPECT_DOUBLE_EQ(large.norm.item<double>(), 10);
  EXPECT_NEAR(large.factor.item<float>(), 0.2, 1e-6);
  EXPECT_EQ(clip(at::tensor(1.0, at::kDouble), 1.0, 2.0).factor.item<float>(), 1);
  EXPECT_EQ(clip(at::tensor(1e6, at::kDouble), 1.0, 0).factor.item<float>(), 1);  // 0 does not clip
}

}  // namespace
}  // namespace cairn::optim
