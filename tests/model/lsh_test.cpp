#include "model/experts/lsh.h"

#include <cmath>
#include <map>
#include <set>

#include <ATen/Parallel.h>
#include <ATen/core/IListRef.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"

namespace cairn::model {
namespace {

using ::testing::HasSubstr;

at::Tensor gaussian(int64_t rows, int64_t width, uint64_t seed) {
  const at::Tensor x = at::empty({rows, width}, at::kFloat);
  base::Random(seed).fill_normal({x.data_ptr<float>(), static_cast<size_t>(x.numel())});
  return x;
}

// Rows near one of a few directions.
at::Tensor alike(int64_t rows, int64_t width, int64_t kinds, double noise, uint64_t seed) {
  const at::Tensor centers = gaussian(kinds, width, seed);
  at::Tensor x = gaussian(rows, width, seed + 1) * noise;
  for (int64_t i = 0; i < rows; ++i)
    x[i].add_(
        centers[static_cast<int64_t>(base::Random(seed).for_name("kind").below(static_cast<uint64_t>(i), static_cast<uint64_t>(kinds)))]);
  return x;
}

RowClusters clusters_of(const at::Tensor& rows, const std::vector<int64_t>& counts, const LshOptions& options) {
  return cluster_rows(lsh_keys(rows, lsh_rotations(rows.size(1), options), options), kernels::RowGroups(counts));
}

// Some expert: another nonlinear map for each group, on clusters or rows.
at::Tensor experts(const at::Tensor& x, const std::vector<int64_t>& counts, const std::vector<at::Tensor>& weights) {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    parts.push_back(at::tanh(at::matmul(x.narrow(0, first, counts[e]), weights[e])));
    first += counts[e];
  }
  return at::cat(parts);
}

// The gradient of `experts` at x, by hand: dx = (dy (1 - y^2)) W^T.
at::Tensor experts_backward(const at::Tensor& x, const at::Tensor& dy, const std::vector<int64_t>& counts,
                            const std::vector<at::Tensor>& weights) {
  const at::Tensor y = experts(x, counts, weights), inner = dy * (1 - y * y);
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    parts.push_back(at::matmul(inner.narrow(0, first, counts[e]), weights[e].t()));
    first += counts[e];
  }
  return at::cat(parts);
}

std::vector<at::Tensor> weights_of(size_t experts, int64_t width, at::ScalarType dtype) {
  std::vector<at::Tensor> weights;
  for (size_t e = 0; e < experts; ++e)
    weights.push_back((gaussian(width, width, 900 + e) / std::sqrt(static_cast<double>(width))).to(dtype));
  return weights;
}

TEST(Lsh, RotationsHaveOrthonormalColumnsAndNeverChange) {
  const LshOptions options{.hashes = 3, .hash_dim = 7};
  const at::Tensor all = lsh_rotations(19, options);
  ASSERT_EQ(all.sizes().vec(), (std::vector<int64_t>{19, 21}));
  for (int64_t q = 0; q < 3; ++q) {
    const at::Tensor r = all.narrow(1, 7 * q, 7).to(at::kDouble), product = at::matmul(r.t(), r);
    for (int64_t i = 0; i < 7; ++i)
      for (int64_t j = 0; j < 7; ++j) EXPECT_NEAR(product[i][j].item<double>(), i == j ? 1 : 0, 1e-6);
  }
  EXPECT_TRUE(at::equal(all, lsh_rotations(19, options)));
  EXPECT_FALSE(at::allclose(all.narrow(1, 0, 7), all.narrow(1, 7, 7)));
}

TEST(Lsh, AKeyIsTheNearestVertexOfEachHash) {
  const LshOptions options{.hashes = 6, .hash_dim = 5};  // 4 bits each
  const at::Tensor rows = gaussian(531, 13, 1), rotations = lsh_rotations(13, options), keys = lsh_keys(rows, rotations, options);
  const auto x = rows.accessor<float, 2>(), r = rotations.accessor<float, 2>();
  for (int64_t n = 0; n < rows.size(0); ++n) {
    uint64_t expected = 0;
    for (int64_t q = 0; q < 6; ++q) {
      double largest = -1;
      uint64_t vertex = 0;
      for (int64_t v = 0; v < 10; ++v) {  // +1 .. +5, -1 .. -5
        double coordinate = 0;
        for (int64_t i = 0; i < 13; ++i) coordinate += static_cast<double>(x[n][i]) * static_cast<double>(r[i][5 * q + v % 5]);
        if (v >= 5) coordinate = -coordinate;
        if (coordinate > largest) largest = coordinate, vertex = static_cast<uint64_t>(v);
      }
      expected |= vertex << (4 * q);
    }
    EXPECT_EQ(static_cast<uint64_t>(keys[n].item<int64_t>()), expected) << n;
  }
}

TEST(Lsh, TiesGoToTheLowestIndexAndZeroRowsHaveKeyZero) {
  const LshOptions options{.hashes = 1, .hash_dim = 4};
  const at::Tensor rotations = at::zeros({6, 4});
  for (int64_t i = 0; i < 4; ++i) rotations[i][i] = 1;
  const at::Tensor rows = at::tensor({0.f,  0.f,  0.f,  0.f,  9.f, 9.f,  // nothing in the rotated part
                                      0.f,  0.f,  0.f,  0.f,  0.f, 0.f,  //
                                      1.f,  2.f,  -2.f, 2.f,  0.f, 0.f,  // +2
                                      1.f,  -2.f, 2.f,  2.f,  0.f, 0.f,  // -2
                                      -3.f, 3.f,  0.f,  -3.f, 0.f, 0.f}  // -1
                                     )
                              .view({5, 6});
  EXPECT_TRUE(at::equal(lsh_keys(rows, rotations, options), at::tensor({0, 0, 1, 5, 4}, at::kLong)));
  EXPECT_TRUE(at::equal(lsh_keys(rows.to(at::kBFloat16), rotations, options), at::tensor({0, 0, 1, 5, 4}, at::kLong)));
  EXPECT_TRUE(at::equal(lsh_keys(rows * 0.125, rotations, options), at::tensor({0, 0, 1, 5, 4}, at::kLong)));
}

TEST(Lsh, ClustersAreTheRowsOfOneGroupWithOneKey) {
  const std::vector<int64_t> counts{5, 0, 1, 9, 0, 3};
  const at::Tensor keys = at::tensor({3, 1, 3, 1, 1, 7, 2, 2, 2, -1, -1, 2, 0, 5, 2, 4, 4, 4}, at::kLong);
  const RowClusters clusters = cluster_rows(keys, kernels::RowGroups(counts));
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> expected;
  for (int64_t group = 0, row = 0; group < 6; ++group)
    for (int64_t k = 0; k < counts[static_cast<size_t>(group)]; ++k, ++row) expected[{group, keys[row].item<int64_t>()}].push_back(row);
  ASSERT_EQ(clusters.size(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(clusters.groups.host(), (std::vector<int64_t>{2, 0, 1, 4, 0, 1}));
  std::vector<int64_t> groups_seen;
  std::set<int64_t> rows_seen;
  for (int64_t j = 0; j < clusters.size(); ++j) {
    const int64_t begin = clusters.starts[j].item<int64_t>(), end = clusters.starts[j + 1].item<int64_t>();
    std::vector<int64_t> members;
    for (int64_t k = begin; k < end; ++k) {
      members.push_back(clusters.order[k].item<int64_t>());
      EXPECT_EQ(clusters.cluster[members.back()].item<int64_t>(), j);
      rows_seen.insert(members.back());
    }
    bool found = false;
    for (const auto& [key, rows] : expected)
      if (rows == members) found = true, groups_seen.push_back(key.first);
    EXPECT_TRUE(found) << j;
  }
  EXPECT_EQ(rows_seen.size(), 18u);
  EXPECT_TRUE(std::is_sorted(groups_seen.begin(), groups_seen.end()));
}

TEST(Lsh, SingletonsEqualPlainExperts) {
  const LshOptions options{.hashes = 10, .hash_dim = 16};
  const std::vector<int64_t> counts{7, 1, 0, 12};
  for (const bool residual : {true, false}) {
    LshOptions which = options;
    which.residual = residual;
    const at::Tensor rows = gaussian(20, 24, 3), dy = gaussian(20, 24, 4);
    const std::vector<at::Tensor> weights = weights_of(4, 24, at::kFloat);
    const RowClusters clusters = clusters_of(rows, counts, which);
    ASSERT_EQ(clusters.size(), 20);
    const at::Tensor c = centroids_of(rows, clusters);
    const at::Tensor y = restore_rows(experts(c, clusters.groups.host(), weights), rows, c, clusters, which);
    EXPECT_TRUE(at::allclose(y, experts(rows, counts, weights), 0, 1e-6));
    const at::Tensor back = experts_backward(c, centroid_gradients(dy, clusters), clusters.groups.host(), weights);
    EXPECT_TRUE(at::allclose(row_gradients(back, dy, clusters, which), experts_backward(rows, dy, counts, weights), 0, 1e-6));
  }
}

// d/dx of sum(w y) by central differences, with the clusters held.
TEST(Lsh, GradientsAreThoseOfFiniteDifferences) {
  const std::vector<int64_t> counts{5, 0, 1, 9};
  for (const bool residual : {true, false}) {
    const LshOptions options{.hashes = 1, .hash_dim = 3, .residual = residual};
    const at::Tensor rows = gaussian(15, 4, 5).to(at::kDouble), w = gaussian(15, 4, 6).to(at::kDouble);
    const std::vector<at::Tensor> weights = weights_of(4, 4, at::kDouble);
    const RowClusters clusters = clusters_of(rows, counts, options);
    ASSERT_LT(clusters.size(), 13);
    ASSERT_GT(clusters.size(), 3);
    const auto output = [&](const at::Tensor& x) {
      const at::Tensor c = centroids_of(x, clusters);
      return restore_rows(experts(c, clusters.groups.host(), weights), x, c, clusters, options);
    };
    const at::Tensor c = centroids_of(rows, clusters);
    const at::Tensor back = experts_backward(c, centroid_gradients(w, clusters), clusters.groups.host(), weights);
    const at::Tensor gradient = row_gradients(back, w, clusters, options);
    for (int64_t n = 0; n < 15; ++n)
      for (int64_t i = 0; i < 4; ++i) {
        const double step = 1e-5;
        const at::Tensor up = rows.clone(), down = rows.clone();
        up[n][i] += step;
        down[n][i] -= step;
        const double slope = ((output(up) - output(down)) * w).sum().item<double>() / (2 * step);
        EXPECT_NEAR(gradient[n][i].item<double>(), slope, 1e-8) << n << " " << i;
      }
  }
}

TEST(Lsh, RestoresTheMeanOfAClusterAndKeepsDifferences) {
  const LshOptions options{.hashes = 1, .hash_dim = 2};
  const at::Tensor rows = gaussian(40, 6, 8);
  const RowClusters clusters = clusters_of(rows, {40}, options);
  const at::Tensor c = centroids_of(rows, clusters);
  ASSERT_LE(clusters.size(), 4);
  EXPECT_TRUE(at::allclose(restore_rows(c, rows, c, clusters, options), rows, 0, 1e-6));  // the identity as expert
  for (int64_t j = 0; j < clusters.size(); ++j) {
    at::Tensor sum = at::zeros({6}, at::kDouble);
    int64_t members = 0;
    for (int64_t n = 0; n < 40; ++n)
      if (clusters.cluster[n].item<int64_t>() == j) sum += rows[n].to(at::kDouble), ++members;
    EXPECT_TRUE(at::allclose(c[j].to(at::kDouble), sum / members, 0, 1e-6));
  }
}

TEST(Lsh, ALargeClusterInBf16HasTheMeanOfItsRows) {
  const at::Tensor rows = at::full({5000, 3}, 1.0078125, at::kBFloat16);  // a sum in bf16 stops growing at 256
  const RowClusters clusters = clusters_of(rows, {5000}, {.hashes = 1, .hash_dim = 2});
  ASSERT_EQ(clusters.size(), 1);
  EXPECT_TRUE(at::equal(centroids_of(rows, clusters), rows.narrow(0, 0, 1)));
}

TEST(Lsh, CompressesRowsThatAreAlikeAndNoOthers) {
  const std::vector<int64_t> counts(16, 256);
  const auto rate = [&](const at::Tensor& rows) {
    return static_cast<double>(clusters_of(rows, counts, {.hashes = 6, .hash_dim = 32}).size()) / 4096;
  };
  EXPECT_GT(rate(gaussian(4096, 64, 10)), 0.9);
  EXPECT_LT(rate(alike(4096, 64, 10, 0.05, 11)), 0.3);
}

TEST(Lsh, ZeroRowsEmptyGroupsAndNoRowsAtAll) {
  const LshOptions options{.hashes = 6, .hash_dim = 8};
  const RowClusters zeros = clusters_of(at::zeros({6, 8}), {4, 2, 0}, options);
  EXPECT_EQ(zeros.groups.host(), (std::vector<int64_t>{1, 1, 0}));
  const at::Tensor c = centroids_of(at::zeros({6, 8}), zeros);
  EXPECT_TRUE(at::equal(c, at::zeros({2, 8})));
  const RowClusters none = clusters_of(at::zeros({0, 8}), {0, 0}, options);
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(none.groups.host(), (std::vector<int64_t>{0, 0}));
  const at::Tensor empty = centroids_of(at::zeros({0, 8}), none);
  EXPECT_EQ(empty.sizes().vec(), (std::vector<int64_t>{0, 8}));
  EXPECT_EQ(restore_rows(empty, empty, empty, none, options).size(0), 0);
  EXPECT_EQ(row_gradients(empty, empty, none, options).size(0), 0);
}

TEST(Lsh, IsBitwiseTheSameForAnyNumberOfThreads) {
  const LshOptions options{.hashes = 3, .hash_dim = 8};
  const at::Tensor rows = alike(3001, 128, 50, 0.3, 12), dy = gaussian(3001, 128, 13);
  const std::vector<int64_t> counts{1000, 1, 0, 2000};
  const int before = at::get_num_threads();
  at::Tensor order, c, g, back;
  for (const int threads : {1, 2, 3, 7}) {
    at::set_num_threads(threads);
    const RowClusters clusters = clusters_of(rows, counts, options);
    const at::Tensor centroids = centroids_of(rows, clusters), gradients = centroid_gradients(dy, clusters);
    const at::Tensor of_rows = row_gradients(gradients * 0.5, dy, clusters, options);
    if (threads == 1) order = clusters.order, c = centroids, g = gradients, back = of_rows;
    EXPECT_TRUE(at::equal(clusters.order, order)) << threads;
    EXPECT_TRUE(at::equal(centroids, c)) << threads;
    EXPECT_TRUE(at::equal(gradients, g)) << threads;
    EXPECT_TRUE(at::equal(of_rows, back)) << threads;
  }
  at::set_num_threads(before);
}

TEST(Lsh, RefusesKeysThatDoNotFitAndSaysWhatWould) {
  const auto refusal = [](const LshOptions& options, int64_t embed) {
    try {
      check(options, embed);
    } catch (const Error& error) {
      return error.sentence();
    }
    return std::string();
  };
  EXPECT_EQ(refusal({.hashes = 10, .hash_dim = 32}, 64), "");
  EXPECT_EQ(lsh_key_bits({.hashes = 10, .hash_dim = 32}), 60);
  EXPECT_EQ(lsh_key_bits({.hashes = 2, .hash_dim = 33}), 14);
  EXPECT_THAT(refusal({.hashes = 11, .hash_dim = 32}, 64),
              HasSubstr("expert.hashes = 11: with expert.hash_dim = 32 a key has 66 bits, and 64 fit. Use at most 10 hashes"));
  EXPECT_THAT(refusal({.hashes = 0}, 64), HasSubstr("expert.hashes = 0: must be 1 to 16."));
  EXPECT_THAT(refusal({.hashes = 17, .hash_dim = 2}, 64), HasSubstr("must be 1 to 16."));
  EXPECT_THAT(refusal({.hashes = 6, .hash_dim = 65}, 64), HasSubstr("expert.hash_dim = 65: must be 1 to 64"));
}

}  // namespace
}  // namespace cairn::model
