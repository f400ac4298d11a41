#include "kernels/stochastic_rounding.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/device.h"

namespace cairn::kernels {
namespace {

base::Random draws(uint64_t step) { return base::Random(7).for_purpose("rounding").for_name("w").for_index(step); }

at::Tensor rounded(const at::Tensor& from, const base::Random& random, int64_t first_index = 0) {
  const at::Tensor to = at::empty(from.sizes(), at::kBFloat16);
  round_stochastically(to, from, random, first_index);
  return to.to(at::kDouble);
}

// Neighbours of bf16 around 1 lie 2^-7 apart (above) and 2^-8 (below); the mean of n draws has a deviation below gap / (2 sqrt(n)).
TEST(StochasticRounding, GoesToOneOfTwoNeighboursAndIsRightOnAverage) {
  constexpr int64_t kDraws = 200'000;
  for (const float value : {1.001f, -1.0017f, 0.3333333f, 1e-20f, 12345.678f}) {
    const at::Tensor results = rounded(at::full({kDraws}, value), draws(1));
    const double low = results.min().item<double>(), high = results.max().item<double>(), gap = high - low;
    EXPECT_LT(low, value);
    EXPECT_GT(high, value);
    EXPECT_LE(gap, std::abs(value) / 128);
    EXPECT_EQ(((results == low) | (results == high)).sum().item<int64_t>(), kDraws);
    EXPECT_NEAR(results.mean().item<double>(), value, 5 * gap / (2 * std::sqrt(static_cast<double>(kDraws)))) << value;
  }
}

TEST(StochasticRounding, LeavesWhatBf16HoldsAndWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor from = at::tensor({0.f, -0.f, 1.f, -2.5f, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()});
  for (uint64_t step = 0; step < 50; ++step) {
    const at::Tensor to = rounded(from, draws(step));
    for (int i = 0; i < 6; ++i) EXPECT_EQ(to[i].item<double>(), from[i].item<double>());
    EXPECT_TRUE(std::isnan(to[6].item<double>()));
  }
}

TEST(StochasticRounding, DependsOnTheElementNotOnThePiece) {
  const at::Tensor from = at::linspace(-3, 3, 1001, at::kFloat);
  const at::Tensor whole = rounded(from, draws(1));
  EXPECT_TRUE(at::equal(whole.narrow(0, 400, 601), rounded(from.narrow(0, 400, 601).contiguous(), draws(1), 400)));
  EXPECT_TRUE(at::equal(whole, rounded(from, draws(1))));
  EXPECT_FALSE(at::equal(whole, rounded(from, draws(2))));  // another step draws anew
}

TEST(StochasticRounding, WantsBf16FromFp32) {
  EXPECT_THROW(round_stochastically(at::empty({2}, at::kFloat), at::empty({2}, at::kFloat), draws(1), 0), Error);
  EXPECT_THROW(round_stochastically(at::empty({3}, at::kBFloat16), at::empty({2}, at::kFloat), draws(1), 0), Error);
}

TEST(StochasticRounding, AGpuRoundsAsTheCpuDoes) {
  if (!can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t count : {1, 4, 1013, 100'003})
    for (const int64_t first : {0, 4, 5, 6, 7})
      for (const int64_t skipped : {0, 1, 2}) {  // elements before the first one's address
        const at::Tensor from = at::randn({count + skipped}),
                         to = at::empty({count + skipped}, at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA));
        from[skipped] = infinity;
        to.fill_(7);
        round_stochastically(to.narrow(0, skipped, count), from.cuda().narrow(0, skipped, count), draws(3), first);
        EXPECT_TRUE(at::equal(to.narrow(0, skipped, count).cpu().to(at::kDouble), rounded(from.narrow(0, skipped, count), draws(3), first)))
            << count << " from " << first << ", " << skipped << " skipped";
        EXPECT_EQ((to.narrow(0, 0, skipped) == 7).sum().item<int64_t>(), skipped);
      }
}

}  // namespace
}  // namespace cairn::kernels
