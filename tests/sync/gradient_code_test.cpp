#include "sync/coding/gradient_code.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/error_of.h"
#include "base/random.h"

namespace cairn::sync {
namespace {

using testing::HasSubstr;

// The largest deviation of sum over workers of weight * row from a row of ones.
double deviation(const GradientCode& code, const Decoding& decoding) {
  std::vector<double> sums(static_cast<size_t>(code.workers()), 0.0);
  for (int i = 0; i < code.workers(); ++i)
    for (size_t k = 0; k < code.parts(i).size(); ++k)
      sums[static_cast<size_t>(code.parts(i)[k])] += decoding.weights[static_cast<size_t>(i)] * code.coefficients(i)[k];
  double most = 0;
  for (const double one : sums) most = std::max(most, std::abs(one - 1));
  return most;
}

TEST(GradientCode, DecodesFromEverySetOfWorkersThatIsLargeEnough) {
  for (const int n : {1, 2, 5, 8})
    for (int s = 0; s < n; ++s) {
      const GradientCode code(CodeKind::automatic, n, s, 7);
      EXPECT_EQ(code.repetition(), n % (s + 1) == 0);
      std::vector<char> live(static_cast<size_t>(n), 1);
      std::fill(live.begin(), live.begin() + s, 0);
      int sets = 0;
      do {
        const Decoding found = code.decode(live);
        ASSERT_FALSE(found.weights.empty()) << n << ' ' << s;
        ASSERT_LT(deviation(code, found), 1e-9) << n << ' ' << s;
        for (size_t i = 0; i < live.size(); ++i) ASSERT_TRUE(live[i] || found.weights[i] == 0);
        EXPECT_LT(found.condition, GradientCode::kConditionMax);
        ++sets;
      } while (std::next_permutation(live.begin(), live.end()));
      EXPECT_GT(sets, 0);
    }
}

// |S| <= s is tolerated, and one more is not.
TEST(GradientCode, TolerancesAreExact) {
  const GradientCode code(CodeKind::random, 7, 3, 1);
  std::vector<char> live(7, 1);
  live[0] = live[2] = live[5] = 0;
  EXPECT_TRUE(code.decodes(live));
  live[6] = 0;
  EXPECT_FALSE(code.decodes(live));
  EXPECT_TRUE(code.decode(live).weights.empty());
}

TEST(GradientCode, UsesMoreRepliesThanItNeeds) {
  const GradientCode code(CodeKind::random, 6, 2, 1);
  EXPECT_LT(deviation(code, code.decode({1, 1, 1, 1, 1, 1})), 1e-9);
  EXPECT_LT(deviation(code, code.decode({1, 1, 0, 1, 1, 1})), 1e-9);
}

TEST(GradientCode, RepetitionDecodesFromOneWorkerOfEachGroup) {
  const GradientCode code(CodeKind::repetition, 6, 2, 1);
  EXPECT_EQ(code.parts(4), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(code.decode({0, 1, 1, 0, 0, 1}).weights, (std::vector<double>{0, 1, 0, 0, 0, 1}));
  EXPECT_FALSE(code.decodes({1, 1, 1, 0, 0, 0}));
}

TEST(GradientCode, RefusesWhatCannotBe) {
  const auto refusal = [](CodeKind kind, int n, int s) {
    return base::message_of([&] { GradientCode(kind, n, s, 1, "train.coded.stragglers"); });
  };
  EXPECT_THAT(refusal(CodeKind::automatic, 4, 4),
              HasSubstr("train.coded.stragglers = 4: 4 workers, and at least one must not be late: use at most 3"));
  EXPECT_THAT(refusal(CodeKind::repetition, 5, 1), HasSubstr("groups of 2 workers, and 5 workers cannot be divided so: use code = random"));
}

}  // namespace
}  // namespace cairn::sync
