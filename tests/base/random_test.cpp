#include "base/random.h"

#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/random/box_muller.h"
#include "base/random/philox.h"
#include "error_of.h"

namespace cairn::base {
namespace {

TEST(Philox, MatchesThePublishedVectors) {  // kat_vectors of Random123
  EXPECT_EQ(philox({{0, 0, 0, 0}}, 0, 0), (Words4{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  EXPECT_EQ(philox({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u), (Words4{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  EXPECT_EQ(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
            (Words4{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Philox, WorksAtCompileTime) { static_assert(philox({{0, 0, 0, 0}}, 0, 0).word[0] == 0x6627e8d5); }

TEST(Random, ReadsThePhiloxWordsInOrder) {
  const Random random(0);
  EXPECT_EQ(random.bits32(0), 0x6627e8d5u);
  EXPECT_EQ(random.bits32(1), 0xe169c58du);
  EXPECT_EQ(random.bits32(3), 0x9b00dbd8u);
  EXPECT_EQ(random.bits64(0), 0xe169c58d6627e8d5u);
  EXPECT_EQ(random.bits64(1), 0x9b00dbd8bc57ac4cu);
  Random all_ones;
  all_ones.key = all_ones.stream = ~uint64_t{0};
  EXPECT_NE(all_ones.bits32(4), all_ones.bits32(0));
}

TEST(Random, UsesAllOfSeedStreamAndIndex) {
  std::set<uint64_t> seen;
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t one = uint64_t{1} << bit;
    Random streamed(7);
    streamed.stream = one;
    seen.insert(Random(one).bits64(0));
    seen.insert(streamed.bits64(0));
    seen.insert(Random(7).bits64(one));
  }
  EXPECT_EQ(seen.size(), 3u * 64);
}

TEST(Random, DerivesUnrelatedValuesByPurposeNameAndIndex) {
  const Random root(1);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const auto note = [&](const Random& r) { seen.insert({r.key, r.stream}); };
  note(root);
  note(root.for_purpose("init"));
  note(root.for_name("init"));  // a purpose is no name
  note(root.for_purpose(""));
  note(root.for_purpose("a").for_name("b"));
  note(root.for_name("b").for_purpose("a"));  // order counts
  note(root.for_purpose("ab"));
  for (uint64_t i = 0; i < 10'000; ++i) note(root.for_index(i));
  EXPECT_EQ(seen.size(), 10'007u);
  EXPECT_EQ(root.for_purpose("init").for_name("w"), Random(1).for_purpose("init").for_name("w"));
  EXPECT_NE(root.for_purpose("init"), Random(2).for_purpose("init"));
}

TEST(Random, KeepsItsDerivationForGood) {  // saved runs depend on it: these numbers may never change
  const Random random = Random(42).for_purpose("init").for_name("model.layers.0.mlp.up_proj.weight").for_index(3);
  EXPECT_EQ(random.key, 0x20cdb4eb1fe6dc99u);
  EXPECT_EQ(random.stream, 0x88e03ec92dc480b1u);
  EXPECT_EQ(std::bit_cast<uint32_t>(random.normal(5)), 0x3ff1c076u);  // 1.88868594, also by a double-precision script
}

TEST(Random, SpreadsUniformNumbersEvenly) {
  const Random random = Random(3).for_purpose("test");
  std::vector<int> bins(64);
  double sum = 0;
  constexpr int kCount = 64'000;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double u = random.uniform(i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    ++bins[static_cast<size_t>(u * 64)];
  }
  EXPECT_NEAR(sum / kCount, 0.5, 5 / std::sqrt(12.0 * kCount));  // five standard deviations
  double chi2 = 0;
  for (const int n : bins) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_LT(chi2, 63 + 5 * std::sqrt(2.0 * 63));
  EXPECT_GT(chi2, 63 - 5 * std::sqrt(2.0 * 63));
}

TEST(Random, NeverRoundsAUniformFloatUpToOne) {
  const Random random(9);
  for (uint64_t i = 0; i < 100'000; ++i) ASSERT_LT(random.uniform_float(i), 1.0F);
}

TEST(Random, GivesNormalNumbersTheRightMoments) {
  const Random random = Random(5).for_purpose("normal");
  constexpr int kCount = 200'000;
  std::vector<float> x(kCount);
  random.fill_normal(x);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0;
  for (int i = 0; i < kCount; ++i) {
    const double v = x[i];
    m1 += v, m2 += v * v, m3 += v * v * v, m4 += v * v * v * v;
    neighbours += v * x[(i + 1) % kCount];
  }
  const double n = kCount;
  EXPECT_NEAR(m1 / n, 0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(m2 / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(m3 / n, 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(m4 / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 * std::sqrt(1 / n));
}

TEST(Random, FillsAsItLooksUpFromAnyStart) {
  const Random random = Random(8).for_name("w");
  for (const uint64_t first : {0, 1, 2, 3, 4, 1021}) {
    for (const size_t count : {0, 1, 2, 3, 5, 8, 17}) {
      std::vector<float> normals(count), uniforms(count);
      random.fill_normal(normals, first);
      random.fill_uniform(uniforms, first);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(normals[i], random.normal(first + i)) << first << " + " << i;
        ASSERT_EQ(uniforms[i], random.uniform_float(first + i)) << first << " + " << i;
      }
    }
  }
}

TEST(Random, DrawsBelowABoundEvenly) {
  const Random random(11);
  for (const uint64_t n : {1, 2, 3, 7}) {
    std::vector<int> counts(n);
    for (uint64_t i = 0; i < 7000; ++i) ++counts.at(random.below(i, n));
    for (const int count : counts) EXPECT_NEAR(count, 7000.0 / static_cast<double>(n), 5 * std::sqrt(7000.0 / static_cast<double>(n)));
  }
  EXPECT_LT(random.below(0, ~uint64_t{0}), ~uint64_t{0});
  EXPECT_EQ(error_of([&] { (void)random.below(0, 0); }).kind(), Error::Kind::broken_invariant);
}

TEST(BoxMuller, HasALogarithmAsGoodAsTheLibrarys) {
  for (int i = 0; i < 20'000; ++i) {
    const double x = (philox({{static_cast<uint32_t>(i), 0, 0, 0}}, 1, 1).word[0] + 0.5) * 0x1p-32;
    ASSERT_NEAR(portable_log(x), std::log(x), 4e-16 * std::max(1.0, std::abs(std::log(x)))) << x;
  }
  EXPECT_EQ(portable_log(1.0), 0.0);
  EXPECT_NEAR(portable_log(0x1p-33), -33 * std::log(2.0), 1e-14);
}

TEST(BoxMuller, HasACosineAndSineAsGoodAsTheLibrarys) {
  std::vector<uint32_t> turns;
  for (uint32_t eighth = 0; eighth < 8; ++eighth)
    for (const uint32_t offset : {0u, 1u, 12345u, 0x10000000u, 0x1FFFFFFFu}) turns.push_back((eighth << 29) + offset);
  for (uint32_t i = 0; i < 5000; ++i) turns.push_back(philox({{i, 0, 0, 0}}, 2, 2).word[0]);
  for (const uint32_t k : turns) {
    double cosine = 0, sine = 0;
    portable_cos_sin(k, cosine, sine);
    const long double angle = 6.283185307179586476925286766559L * ((k + 0.5L) / 4294967296.0L);
    ASSERT_NEAR(cosine, static_cast<double>(std::cos(angle)), 3e-16) << k;
    ASSERT_NEAR(sine, static_cast<double>(std::sin(angle)), 3e-16) << k;
  }
}

TEST(BoxMuller, StaysFiniteAtTheEdges) {
  for (const uint32_t a : {0u, 1u, 0xFFFFFFFFu})
    for (const uint32_t b : {0u, 1u, 0x80000000u, 0xFFFFFFFFu}) {
      const NormalPair pair = box_muller(a, b);
      EXPECT_TRUE(std::isfinite(pair.first) && std::isfinite(pair.second)) << a << " " << b;
      EXPECT_LE(std::hypot(pair.first, pair.second), 6.77);
    }
}

}  // namespace
}  // namespace cairn::base
