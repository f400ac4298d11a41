#include "kernels/perturb.h"

#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/checksum.h"
#include "kernels/aten.h"

namespace cairn::kernels {
namespace {

std::vector<float> direction(const base::Random& random, int64_t first, size_t count, Noise noise) {
  std::vector<float> values(count);
  fill_direction(values, random, first, noise);
  return values;
}

TEST(Perturb, ADirectionIsTheSameInWhateverPieces) {
  const base::Random random = base::Random(5).for_name("w");
  for (const Noise noise : {Noise::normal, Noise::rademacher}) {
    const std::vector<float> whole = direction(random, 0, 1000, noise);
    for (const int64_t first : {1, 3, 31, 32, 33, 517})
      for (const size_t count : {1u, 2u, 63u, 200u}) {
        const std::vector<float> piece = direction(random, first, count, noise);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(piece[i], whole[static_cast<size_t>(first) + i]);
      }
  }
}

// Written down once, on an Arm machine: other machines must give bitwise identical values.
TEST(Perturb, DirectionsHaveTheseBitsOnEveryMachine) {
  const auto hash = [](Noise noise) {
    const std::vector<float> values = direction(base::Random(5).for_name("w"), 7, 4096, noise);
    return base::checksum(std::as_bytes(std::span(values)));
  };
  EXPECT_EQ(hash(Noise::normal), 2022960012912820186u);
  EXPECT_EQ(hash(Noise::rademacher), 9835493085853182275u);
}

TEST(Perturb, RademacherIsAsOftenUpAsDown) {
  double sum = 0;
  for (const float x : direction(base::Random(1), 0, 100000, Noise::rademacher)) {
    ASSERT_EQ(std::abs(x), 1.0f);
    sum += x;
  }
  EXPECT_LT(std::abs(sum), 4 * std::sqrt(100000.0));
}

TEST(Perturb, AddsToACopyAndRoundsOnce) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor weights = at::arange(777).to(at::kFloat).mul(0.01f).to(type), before = weights.clone();
    const at::Tensor out = at::empty_like(weights);
    perturb(out, weights, {base::Random(2), 0.125f}, 11, Noise::normal);
    EXPECT_TRUE(at::equal(weights, before));
    const std::vector<float> z = direction(base::Random(2), 11, 777, Noise::normal);
    for (int64_t i = 0; i < 777; ++i) {
      const float exact = weights[i].item<float>() + 0.125f * z[static_cast<size_t>(i)];
      ASSERT_EQ(out[i].item<float>(), at::full({1}, exact).to(type).item<float>());
    }
  }
}

TEST(Perturb, ReplaySumsInOrderWithEachOperationRounded) {
  const at::Tensor weights = at::arange(9001).to(at::kFloat).mul(1e-3f), before = weights.clone();
  const std::vector<Direction> directions{{base::Random(1), 0.3f}, {base::Random(2), -1.7f}, {base::Random(3), 0.01f}};
  replay(weights, directions, 5, 0.25f, 0.999f, Noise::normal);
  std::vector<std::vector<float>> z;
  for (const Direction& one : directions) z.push_back(direction(one.random, 5, 9001, Noise::normal));
  for (size_t i = 0; i < 9001; i += 13) {
    volatile float sum = 0;  // no rounding may be left out
    for (size_t d = 0; d < 3; ++d) {
      volatile float product = directions[d].coefficient * z[d][i];
      sum = sum + product;
    }
    volatile float kept = before[static_cast<int64_t>(i)].item<float>() * 0.999f;
    volatile float moved = 0.25f * sum;
    ASSERT_EQ(weights[static_cast<int64_t>(i)].item<float>(), kept - moved) << i;
  }
}

TEST(Perturb, ReplayIsTheSameOnAnyNumberOfThreadsAndForAnySlices) {
  const std::vector<Direction> directions{{base::Random(1), 0.3f}, {base::Random(2), -1.7f}};
  const auto replayed = [&](int threads, std::vector<int64_t> cuts) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const at::Tensor weights = at::arange(20011).to(at::kFloat).mul(1e-3f);
    int64_t begin = 0;
    cuts.push_back(weights.numel());
    for (const int64_t end : cuts) replay(weights.slice(0, begin, end), directions, begin, 0.1f, 1, Noise::normal), begin = end;
    at::set_num_threads(before);
    return weights;
  };
  const at::Tensor one = replayed(1, {});
  EXPECT_TRUE(at::equal(one, replayed(2, {})));
  EXPECT_TRUE(at::equal(one, replayed(8, {})));
  EXPECT_TRUE(at::equal(one, replayed(1, {1, 4097, 10000, 19999})));
}

}  // namespace
}  // namespace cairn::kernels
