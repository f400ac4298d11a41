#include "base/random/approximate_normal.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "base/random/box_muller.h"

namespace cairn::base {
namespace {

// Words all over, those at both ends of each octave and quadrant, and those around sqrt(1/2), where the radius changes its formula.
std::vector<uint32_t> words() {
  std::vector<uint32_t> result;
  for (uint64_t word = 0; word < uint64_t{1} << 32; word += 40503) result.push_back(static_cast<uint32_t>(word));
  for (int power = 0; power < 32; ++power)
    for (uint32_t near = 0; near < 64; ++near) {
      const uint32_t at = uint32_t{1} << power;
      for (const uint32_t word : {at - 32 + near, ~at - 32 + near, 0xB504F334u - 32 + near, (at >> 1) * 3 - 32 + near})
        result.push_back(word);
    }
  return result;
}

double apart(double found, double expected) { return std::abs(found / expected - 1); }

TEST(ApproximateNormal, IsAsNearAsItsBoundsNeed) {
  double radius = 0, turn = 0;
  for (const uint32_t word : words()) {
    const double uniform = (static_cast<double>(word) + 0.5) / 4294967296.0;
    radius = std::max(radius, apart(approximate_radius(word), std::sqrt(-2.0 * portable_log(uniform))));
    double cosine = 0, sine = 0;
    portable_cos_sin(word, cosine, sine);
    const ApproximatePair found = approximate_cos_sin(word);
    turn = std::max({turn, apart(found.first, cosine), apart(found.second, sine)});
  }
  EXPECT_LT(radius, std::exp2(-22.4));
  EXPECT_LT(turn, std::exp2(-22.1));
  // A GPU's quotient and root; the product, the rounding of box_muller's, and that of a bound.
  const double all =
      (1 + std::exp2(-22.4)) * (1 + std::exp2(-22.1)) * std::pow(1 + std::exp2(-23.0), 2) * std::pow(1 + std::exp2(-24.0), 3);
  EXPECT_LT(all, 1 + static_cast<double>(kApproximateNormalError));
}

TEST(ApproximateNormal, HasTheExactNumbersBetweenItsBounds) {
  const std::vector<uint32_t> all = words();
  for (size_t i = 0; i < all.size(); ++i) {
    const uint32_t a = all[i], b = all[(i * 7919 + 1) % all.size()];
    const ApproximatePair quick = approximate_normal(a, b);
    const NormalPair exact = box_muller(a, b);
    for (const auto& [found, expected] : {std::pair(quick.first, exact.first), std::pair(quick.second, exact.second)}) {
      const float one = found * (1 - kApproximateNormalError), other = found * (1 + kApproximateNormalError);
      ASSERT_TRUE(std::min(one, other) <= expected && expected <= std::max(one, other)) << a << ' ' << b << ' ' << found << ' ' << expected;
    }
  }
}

}  // namespace
}  // namespace cairn::base
