#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "data/search/centroid_assignment.h"
#include "data/search/k_means.h"
#include "data/search/top_k.h"
#include "kernels/aten.h"
#include "kernels/device.h"

namespace cairn::data {
namespace {

at::Tensor random_rows(int64_t rows, int64_t dim, uint64_t seed, bool unit = true) {
  const at::Tensor made = at::empty({rows, dim});
  base::Random(seed).fill_normal({made.mutable_data_ptr<float>(), static_cast<size_t>(made.numel())});
  return unit ? made / made.norm(2, 1, true) : made;
}

// Rows in groups around centres, some of them repeated.
at::Tensor grouped_rows(int64_t rows, int64_t dim, int64_t groups, uint64_t seed) {
  const at::Tensor centres = random_rows(groups, dim, seed), noise = random_rows(rows, dim, seed + 1);
  at::Tensor made = centres.index_select(0, at::arange(rows, at::kLong).remainder(groups)) + 0.1 * noise;
  made = made / made.norm(2, 1, true);
  for (int64_t i = 20; i < std::min<int64_t>(rows, 60); ++i) made[i].copy_(made[i - 20]);
  return made;
}

std::vector<Match> all_matches(const at::Tensor& query, const at::Tensor& rows, Metric metric) {
  std::vector<Match> all;
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const float* row = rows.const_data_ptr<float>() + i * rows.size(1);
    const auto* q = query.const_data_ptr<float>();
    all.push_back({i, metric == Metric::distance ? -squared_distance(q, row, rows.size(1)) : scalar_product(q, row, rows.size(1))});
  }
  std::ranges::sort(all, is_better);
  return all;
}

TEST(ScalarProduct, IsExactToItsLastBit) {
  const at::Tensor a = random_rows(1, 101, 1, false), b = random_rows(1, 101, 2, false);
  long double sum = 0, apart = 0;
  for (int64_t i = 0; i < 101; ++i) {
    const auto x = static_cast<long double>(a[0][i].item<float>()), y = static_cast<long double>(b[0][i].item<float>());
    sum += x * y;
    apart += static_cast<long double>(a[0][i].item<float>() - b[0][i].item<float>()) *
             static_cast<long double>(a[0][i].item<float>() - b[0][i].item<float>());
  }
  EXPECT_EQ(scalar_product(a.const_data_ptr<float>(), b.const_data_ptr<float>(), 101), static_cast<float>(sum));
  EXPECT_EQ(squared_distance(a.const_data_ptr<float>(), b.const_data_ptr<float>(), 101), static_cast<float>(apart));
}

TEST(TopK, EqualsSortingAllRows) {
  const at::Tensor rows = grouped_rows(5000, 40, 30, 3);
  for (const Metric metric : {Metric::scalar_product, Metric::distance})
    for (const int64_t queries : {1, 7, 50})
      for (const int64_t k : {10, 600, 5000}) {
        const at::Tensor asked = grouped_rows(queries, 40, 9, 4);
        const auto found = top_k(asked, *rows_in_memory(rows), k, {.metric = metric});
        ASSERT_EQ(static_cast<int64_t>(found.size()), queries);
        for (int64_t q = 0; q < queries; ++q) {
          std::vector<Match> expected = all_matches(asked.narrow(0, q, 1), rows, metric);
          expected.resize(static_cast<size_t>(k));
          EXPECT_EQ(found[static_cast<size_t>(q)], expected) << queries << " queries, " << k << ", query " << q;
        }
      }
}

// What a search finds on a device, as on the CPU alone. A CPU takes the same way as a GPU.
void expect_same_on(at::Device device) {
  const at::Tensor rows = grouped_rows(20'000, 12, 40, 31), queries = grouped_rows(300, 12, 9, 32);
  const auto source = rows_in_memory(rows.to(at::kHalf));
  for (const Metric metric : {Metric::scalar_product, Metric::distance})
    for (const auto& [k, asked] : {std::pair{1, 300}, {50, 300}, {18'000, 3}}) {
      TopKOptions options{.metric = metric};
      const auto expected = top_k(queries.narrow(0, 0, asked), *source, k, options);
      options.device = device;
      EXPECT_EQ(top_k(queries.narrow(0, 0, asked), *source, k, options), expected) << k;
    }
  const std::vector<std::vector<Match>> first = top_k(queries.narrow(0, 0, 2), *source, 40);
  TopKOptions later{.after = {first[0].back(), std::nullopt}};
  later.share = share_of_rank(20'000, 1, 3);
  const auto next = top_k(queries.narrow(0, 0, 2), *source, 100, later);
  later.device = device;
  EXPECT_EQ(top_k(queries.narrow(0, 0, 2), *source, 100, later), next);
  EXPECT_EQ(best_scores(queries, *source, {}, {}, device), best_scores(queries, *source));
  for (const bool spherical : {false, true}) {
    KMeansOptions options{.clusters = 50, .spherical = spherical, .iterations = 5, .seed = 3};
    const KMeans expected = k_means(*source, options);
    options.device = device;
    const KMeans found = k_means(*source, options);
    EXPECT_TRUE(at::equal(found.centroids, expected.centroids));
    EXPECT_EQ(found.labels, expected.labels);
    EXPECT_EQ(found.inertia, expected.inertia);
  }
}

TEST(Search, IsBitwiseTheSameOnADevice) { expect_same_on(at::kCPU); }

TEST(Search, IsBitwiseTheSameOnAGpu) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "needs a GPU";
  expect_same_on(at::kCUDA);
}

TEST(TopK, GoesOnAfterAMatch) {
  const at::Tensor rows = grouped_rows(3000, 16, 10, 5), query = random_rows(2, 16, 6);
  const auto source = rows_in_memory(rows);
  const auto all = top_k(query, *source, 3000);
  const auto first = top_k(query, *source, 40);
  const auto next = top_k(query, *source, 100, {.after = {first[0].back(), std::nullopt}});
  EXPECT_TRUE(std::equal(next[0].begin(), next[0].end(), all[0].begin() + 40)) << "after the 40th";
  EXPECT_TRUE(std::equal(next[1].begin(), next[1].end(), all[1].begin())) << "from the beginning";
}

TEST(TopK, OfSharesMergesToThatOfAllRows) {
  const at::Tensor rows = grouped_rows(2500, 24, 12, 7), queries = random_rows(5, 24, 8);
  const auto source = rows_in_memory(rows);
  const auto whole = top_k(queries, *source, 70);
  for (const int ranks : {2, 4, 7}) {
    std::vector<std::vector<std::vector<Match>>> parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(top_k(queries, *source, 70, {.share = share_of_rank(2500, rank, ranks)}));
    for (size_t q = 0; q < 5; ++q) {
      std::vector<std::vector<Match>> lists;
      for (const auto& part : parts) lists.push_back(part[q]);
      EXPECT_EQ(merge_matches(lists, 70), whole[q]) << ranks << " ranks";
    }
  }
}

TEST(TopK, ReadsFp16AndChosenRows) {
  const at::Tensor narrow = grouped_rows(1500, 32, 8, 9).to(at::kHalf), query = random_rows(1, 32, 10);
  const auto all = rows_in_memory(narrow);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < 1500; i += 3) numbers.push_back(i);
  const auto found = top_k(query, *chosen_rows(*all, numbers), 20)[0];
  std::vector<Match> expected;
  for (const Match& match : all_matches(query, narrow.to(at::kFloat), Metric::scalar_product))
    if (match.id % 3 == 0 && expected.size() < 20) expected.push_back({match.id / 3, match.score});
  EXPECT_EQ(found, expected);
}

TEST(BestScores, AreTheHighestOverAllQueries) {
  const at::Tensor rows = grouped_rows(2200, 20, 10, 11), queries = random_rows(300, 20, 12);
  const std::vector<float> found = best_scores(queries, *rows_in_memory(rows));
  for (int64_t i = 0; i < 2200; i += 37) {
    float most = -2;
    for (int64_t q = 0; q < 300; ++q)
      most = std::max(most, scalar_product(rows.const_data_ptr<float>() + i * 20, queries.const_data_ptr<float>() + q * 20, 20));
    EXPECT_EQ(found[static_cast<size_t>(i)], most) << i;
  }
}

TEST(KMeans, FindsSeparateGroups) {
  const at::Tensor rows = grouped_rows(3000, 24, 12, 13);
  const KMeans found = k_means(*rows_in_memory(rows), {.clusters = 12, .restarts = 3, .seed = 1});
  std::set<std::pair<int64_t, int32_t>> pairs;
  for (int64_t i = 60; i < 3000; ++i) pairs.insert({i % 12, found.labels[static_cast<size_t>(i)]});
  EXPECT_EQ(pairs.size(), 12u) << "each group is one cluster";
  EXPECT_EQ(std::accumulate(found.sizes.begin(), found.sizes.end(), int64_t{0}), 3000);
}

TEST(KMeans, TakesLloydsStepsExactly) {
  const at::Tensor rows = random_rows(700, 9, 14, false), start = rows.narrow(0, 0, 6).clone();
  const KMeans found = k_means(*rows_in_memory(rows), {.clusters = 6, .iterations = 4, .start = start});
  at::Tensor centroids = start.to(at::kDouble);
  at::Tensor labels;
  const auto assign = [&] { labels = (rows.to(at::kDouble).unsqueeze(1) - centroids.unsqueeze(0)).pow(2).sum(2).argmin(1); };
  assign();
  for (int step = 0; step < 4; ++step) {
    for (int64_t c = 0; c < 6; ++c) centroids[c].copy_(rows.to(at::kDouble).index_select(0, labels.eq(c).nonzero().flatten()).mean(0));
    assign();
  }
  EXPECT_TRUE(at::allclose(found.centroids.to(at::kDouble), centroids, 1e-5, 1e-6));
  for (int64_t i = 0; i < 700; ++i) EXPECT_EQ(found.labels[static_cast<size_t>(i)], labels[i].item<int64_t>());
  const double inertia = (rows.to(at::kDouble) - centroids.index_select(0, labels)).pow(2).sum().item<double>();
  EXPECT_NEAR(found.inertia, inertia, 1e-4 * inertia);
}

// Centroids in pairs closer than the rounding of products in fp32; copies among them.
TEST(CentroidAssignment, SettlesNearTiesExactly) {
  constexpr int64_t kDim = 48;
  const at::Tensor rows = random_rows(1000, kDim, 41);
  const auto source = rows_in_memory(rows);
  for (const int64_t clusters : {40, 2400})
    for (const bool spherical : {false, true}) {
      at::Tensor centroids = random_rows(clusters, kDim, 42);
      centroids.narrow(0, clusters / 2, clusters / 2).copy_(centroids.narrow(0, 0, clusters / 2));
      centroids.narrow(0, clusters / 2, clusters / 4).add_(3e-8 * random_rows(clusters / 4, kDim, 43, false));
      for (const std::optional<at::Device> device : {std::optional<at::Device>(), std::optional<at::Device>(at::kCPU)}) {
        std::vector<int32_t> labels(1000, -1);
        assign_centroids(*source, block_share(*source, {}), centroids, spherical, device,
                         [&](const AssignedBlock& block, int) { std::ranges::copy(block.which, labels.begin() + block.first); });
        int64_t wrong = 0;
        for (int64_t i = 0; i < 1000; ++i) {
          double most = -INFINITY;
          int32_t nearest = 0;
          for (int64_t c = 0; c < clusters; ++c) {
            const float *x = rows.const_data_ptr<float>() + i * kDim, *y = centroids.const_data_ptr<float>() + c * kDim;
            const float offset = spherical ? 0 : scalar_product(y, y, kDim) / 2;
            const double score = static_cast<double>(scalar_product(x, y, kDim)) - static_cast<double>(offset);
            if (score > most) most = score, nearest = static_cast<int32_t>(c);
          }
          wrong += labels[static_cast<size_t>(i)] != nearest;
        }
        EXPECT_EQ(wrong, 0) << clusters << " clusters";
      }
    }
}

TEST(KMeans, IsBitwiseTheSameOnAnyThreadsAndRanks) {
  const at::Tensor rows = grouped_rows(4000, 16, 25, 15).to(at::kHalf);
  const auto source = rows_in_memory(rows);
  for (const bool spherical : {false, true}) {
    const KMeansOptions options{.clusters = 40, .spherical = spherical, .iterations = 6, .seed = 3};
    const KMeans one = k_means(*source, options);
    at::set_num_threads(2);
    const KMeans two = k_means(*source, options);
    at::set_num_threads(1);
    EXPECT_TRUE(at::equal(one.centroids, two.centroids));
    EXPECT_EQ(one.labels, two.labels);
    EXPECT_EQ(one.inertia, two.inertia);
    EXPECT_EQ(one.centroids.norm(2, 1).sub(1).abs().max().item<float>() < 1e-5f, spherical);
  }
}

TEST(KMeans, KeepsEveryClusterAlive) {
  at::Tensor rows = at::ones({400, 4});
  rows.narrow(0, 0, 8).add_(random_rows(8, 4, 16, false));
  const KMeans found = k_means(*rows_in_memory(rows), {.clusters = 5, .seed = 2});
  EXPECT_GE(std::ranges::count_if(found.sizes, [](int64_t size) { return size > 0; }), 4);
}

TEST(KMeans, RefusesMoreClustersThanRowsAndRowsThatAreNotFinite) {
  at::Tensor rows = random_rows(10, 4, 17);
  EXPECT_THROW(k_means(*rows_in_memory(rows), {.clusters = 11}), Error);
  rows[3][1] = NAN;
  EXPECT_THROW(k_means(*rows_in_memory(rows), {.clusters = 2}), Error);
}

}  // namespace
}  // namespace cairn::data
