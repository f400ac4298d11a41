#include "comm/sparsify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"

namespace cairn::comm {
namespace {

using SparseFloats = std::vector<float>;

SparseFloats normal_message(uint64_t seed, size_t elements) {
  SparseFloats message(elements);
  base::Random(seed).fill_normal(message);
  return message;
}

double square(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return sum;
}

bool ascending(const Indices& indices, int64_t elements) {
  return std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) == indices.end() &&
         (indices.empty() || (indices.front() >= 0 && indices.back() < elements));
}

TEST(Sparsify, KeepsTheNearestNumberButAtLeastOne) {
  EXPECT_EQ(kept_count(100, 0.1), 10);
  EXPECT_EQ(kept_count(7, 0.5), 4);
  EXPECT_EQ(kept_count(7, 1), 7);
  EXPECT_EQ(kept_count(3, 0.01), 1);
  EXPECT_EQ(kept_count(0, 0.5), 0);
}

TEST(Sparsify, RandomIndicesAreDistinctAndTheSameForTheSameKey) {
  for (const int64_t elements : {1, 2, 63, 64, 65, 127, 1000})
    for (const int64_t count : {int64_t{0}, int64_t{1}, elements / 3, elements - 1, elements}) {
      const base::Random random = base::Random(5).for_index(static_cast<uint64_t>(elements));
      const Indices indices = random_indices(random, elements, count);
      ASSERT_EQ(indices.size(), static_cast<size_t>(count));
      EXPECT_TRUE(ascending(indices, elements));
      EXPECT_EQ(indices, random_indices(random, elements, count));
    }
  EXPECT_NE(random_indices(base::Random(1), 1000, 100), random_indices(base::Random(2), 1000, 100));
}

// Written down once: another machine must draw the same.
TEST(Sparsify, RandomIndicesAreTheseOnEveryMachine) {
  EXPECT_EQ(random_indices(base::Random(42), 50, 8), (Indices{9, 10, 11, 15, 18, 28, 34, 41}));
}

TEST(Sparsify, EverySetOfIndicesIsAsLikely) {
  constexpr int kDraws = 6000;
  std::map<Indices, int> seen;  // of the 15 pairs of six
  for (int draw = 0; draw < kDraws; ++draw) ++seen[random_indices(base::Random(3).for_index(static_cast<uint64_t>(draw)), 6, 2)];
  ASSERT_EQ(seen.size(), 15u);
  double chi_square = 0;
  for (const auto& [indices, times] : seen) chi_square += std::pow(times - kDraws / 15.0, 2) / (kDraws / 15.0);
  EXPECT_LT(chi_square, 36.1);  // 14 degrees of freedom: one in a thousand seeds is above
}

TEST(Sparsify, ScaledRandomIndicesGiveTheMessageOnAverage) {
  const SparseFloats message = normal_message(7, 20);
  constexpr int64_t kCount = 3;
  constexpr int kDraws = 20000;
  std::vector<double> mean(20, 0), energy(1, 0);
  for (int draw = 0; draw < kDraws; ++draw) {
    SparseFloats through(20, 0.0f), values(kCount);
    const Indices indices = random_indices(base::Random(9).for_index(static_cast<uint64_t>(draw)), 20, kCount);
    values_at(message, indices, values);
    add_at(through, indices, values, 20.0f / kCount);
    for (size_t i = 0; i < 20; ++i) mean[i] += through[i] / kDraws;
    energy[0] += square(through) / kDraws;
  }
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(mean[i], message[i], 5 * std::sqrt(20.0 / kCount / kDraws) * std::abs(message[i]) + 1e-6);
  EXPECT_NEAR(energy[0] / square(message), 20.0 / kCount, 0.1);  // q = d / k
}

TEST(Sparsify, TopKAreTheLargestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(top_k_indices(SparseFloats{1, -3, 2, 3, -0.5f, 3}, 3), (Indices{1, 3, 5}));
  EXPECT_EQ(top_k_indices(SparseFloats{1, -3, 2, 3, -0.5f, 3}, 2), (Indices{1, 3}));
  EXPECT_EQ(top_k_indices(SparseFloats{0, -0.0f, 0}, 2), (Indices{0, 1}));
  EXPECT_EQ(top_k_indices(SparseFloats{5, std::numeric_limits<float>::infinity(), 7}, 1), (Indices{1}));
  for (const size_t elements : {1u, 2u, 31u, 257u}) {
    const SparseFloats message = normal_message(elements, elements);
    for (size_t count = 0; count <= elements; count += 1 + elements / 7) {
      Indices expected(elements);
      std::iota(expected.begin(), expected.end(), 0);
      std::stable_sort(expected.begin(), expected.end(), [&](int64_t a, int64_t b) {
        return std::abs(message[static_cast<size_t>(a)]) > std::abs(message[static_cast<size_t>(b)]);
      });
      expected.resize(count);
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(top_k_indices(message, static_cast<int64_t>(count)), expected);
    }
  }
}

TEST(Sparsify, TopKRefusesNan) {
  try {
    top_k_indices(SparseFloats{1, 2, std::nanf("")}, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::diverged);
    EXPECT_NE(std::string(error.what()).find("element 2 of a message is nan"), std::string::npos) << error.what();
  }
}

TEST(Sparsify, TopKLosesNoMoreThanItsShare) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SparseFloats message = normal_message(seed, 97);
    SparseFloats rest = message;
    for (const int64_t index : top_k_indices(message, 13)) rest[static_cast<size_t>(index)] = 0;
    EXPECT_LE(square(rest), (1 - 13.0 / 97) * square(message));
  }
}

TEST(Sparsify, SentPlusResidualIsExactlyWhatWasGiven) {
  SparseFloats residual(50, 0.0f), values;
  std::vector<double> given(50, 0), sent(50, 0);
  for (uint64_t round = 0; round < 40; ++round) {
    const SparseFloats message = normal_message(100 + round, 50);
    const Indices indices = take_top_k(message, residual, 5, values);
    for (size_t i = 0; i < 50; ++i) given[i] += message[i];
    for (size_t i = 0; i < indices.size(); ++i) sent[static_cast<size_t>(indices[i])] += values[i];
    for (size_t i = 0; i < 50; ++i) ASSERT_NEAR(sent[i] + residual[i], given[i], 1e-5);
  }
  for (const float x : residual) EXPECT_LT(std::abs(x), 20);  // the residual stays bounded
}

TEST(Sparsify, AMessageThatIsNotFiniteLeavesTheResidualAlone) {
  SparseFloats residual{1, 2, 3}, values;
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(take_top_k(SparseFloats{0.5f, 0.5f, bad}, residual, 1, values), Error);
    EXPECT_EQ(residual, (SparseFloats{1, 2, 3}));
  }
}

TEST(Sparsify, PairsComeBackFromTheirBytes) {
  const SparseFloats message = normal_message(1, 1000);
  for (const int64_t count : {0, 1, 10, 333, 1000}) {
    const Indices indices = top_k_indices(message, count);
    SparseFloats values(indices.size());
    values_at(message, indices, values);
    const std::vector<std::byte> bytes = encode_sparse(indices, values);
    EXPECT_LE(bytes.size(), 2 + 6 * indices.size());  // gaps below 16384 take two bytes
    const Sparse back = decode_sparse(bytes, 1000);
    EXPECT_EQ(back.indices, indices);
    EXPECT_EQ(back.values, values);
  }
}

TEST(Sparsify, DamagedPairsAreRefused) {
  const std::vector<std::byte> good = encode_sparse(Indices{3, 400, 900}, SparseFloats{1, 2, 3});
  const auto refused = [](std::vector<std::byte> bytes, int64_t elements) {
    try {
      decode_sparse(bytes, elements);
      return false;
    } catch (const Error& error) {
      return error.kind() == Error::Kind::corrupt_file;
    }
  };
  EXPECT_FALSE(refused(good, 1000));
  EXPECT_TRUE(refused(good, 900));  // the last place is beyond
  EXPECT_TRUE(refused(good, 2));    // more pairs than elements
  EXPECT_TRUE(refused({}, 1000));
  EXPECT_TRUE(refused(std::vector<std::byte>(12, std::byte{0xFF}), 1000));
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_TRUE(refused(std::vector<std::byte>(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)), 1000)) << length;
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(refused(longer, 1000));
}

}  // namespace
}  // namespace cairn::comm
