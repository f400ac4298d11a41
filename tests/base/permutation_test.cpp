#include "base/random/permutation.h"

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "error_of.h"

namespace cairn::base {
namespace {

TEST(Permutation, HitsEveryValueOnce) {
  for (const uint64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 100, 1000, 1023, 1024, 1025, 4097}) {
    for (const uint64_t seed : {0, 1, 2}) {
      const Permutation shuffle(n, Random(seed));
      std::vector<bool> seen(n);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t value = shuffle.at(i);
        ASSERT_LT(value, n);
        ASSERT_FALSE(seen[value]) << "n " << n << " seed " << seed << " value " << value << " twice";
        seen[value] = true;
        ASSERT_EQ(shuffle.index_of(value), i);
      }
    }
  }
}

TEST(Permutation, InvertsItselfWhereItCannotBeListed) {
  for (const uint64_t n : {uint64_t{1} << 40, (uint64_t{1} << 40) + 1, uint64_t{999'999'999'989}, uint64_t{1} << 63}) {
    const Permutation shuffle(n, Random(n));
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t index = Random(1).below(i, n);
      const uint64_t value = shuffle.at(index);
      ASSERT_LT(value, n);
      ASSERT_EQ(shuffle.index_of(value), index);
      seen.insert(value);
    }
    EXPECT_EQ(seen.size(), 1000u);
  }
}

TEST(Permutation, ReachesEveryOrderOfThreeEvenly) {
  std::map<std::vector<uint64_t>, int> counts;
  constexpr int kSeeds = 6000;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Permutation shuffle(3, Random(seed).for_purpose("order"));
    ++counts[{shuffle.at(0), shuffle.at(1), shuffle.at(2)}];
  }
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 250);
}

TEST(Permutation, SpreadsNeighboursOverTheWholeRange) {
  constexpr uint64_t kSize = 10'000;
  const Permutation shuffle(kSize, Random(4));
  double moved = 0, product = 0;
  int64_t in_place = 0;
  for (uint64_t i = 0; i + 1 < kSize; ++i) {
    const double a = static_cast<double>(shuffle.at(i)), b = static_cast<double>(shuffle.at(i + 1));
    moved += std::abs(a - b);
    product += (a / kSize - 0.5) * (b / kSize - 0.5);
    in_place += shuffle.at(i) == i ? 1 : 0;
  }
  EXPECT_NEAR(moved / kSize, kSize / 3.0, kSize / 60.0);       // the mean distance of two uniform numbers
  EXPECT_NEAR(product / kSize, 0, 5.0 / 12 / std::sqrt(1e4));  // no correlation
  EXPECT_LT(in_place, 10);                                     // one is expected
}

TEST(Permutation, DiffersFromSeedToSeed) {
  const Permutation a(1000, Random(1)), b(1000, Random(2)), again(1000, Random(1));
  int64_t equal = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a.at(i), again.at(i));
    equal += a.at(i) == b.at(i) ? 1 : 0;
  }
  EXPECT_LT(equal, 10);
}

TEST(Permutation, RefusesWhatIsOutside) {
  EXPECT_EQ(error_of([] { Permutation(0, Random(1)); }).kind(), Error::Kind::broken_invariant);
  EXPECT_NE(message_of([] { (void)Permutation(5, Random(1)).at(5); }).find("index 5 of a permutation of 5"), std::string::npos);
  EXPECT_NE(message_of([] { (void)Permutation(5, Random(1)).index_of(7); }).find("value 7 of a permutation of 5"), std::string::npos);
}

}  // namespace
}  // namespace cairn::base
