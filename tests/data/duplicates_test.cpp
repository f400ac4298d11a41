#include "data/selection/duplicates.h"

#include <algorithm>
#include <barrier>
#include <set>
#include <span>
#include <thread>

#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "data/search/k_means.h"
#include "data/selection/cluster_split.h"
#include "kernels/aten.h"
#include "selection_rows.h"

namespace cairn::data {
namespace {

struct Planted {
  at::Tensor rows;
  std::vector<int64_t> copies;  // rows that are nearly an earlier one
};
Planted planted_copies(int64_t originals, int64_t copies, int64_t dim, uint64_t seed) {
  const at::Tensor base_rows = unit_rows(originals, dim, seed), noise = unit_rows(copies, dim, seed + 1);
  at::Tensor near = base_rows.narrow(0, 0, copies) + 1e-3 * noise;
  Planted made{at::cat({base_rows, near / near.norm(2, 1, true)}), {}};
  for (int64_t i = 0; i < copies; ++i) made.copies.push_back(originals + i);
  return made;
}

TEST(Dedup, RemovesPlantedCopiesAndKeepsOriginals) {
  const Planted made = planted_copies(3000, 900, 32, 21);
  const auto rows = rows_in_memory(made.rows);
  const KMeans clusters = k_means(*rows, {.clusters = 6, .spherical = true, .seed = 1});
  std::vector<float> closeness;
  for (int64_t i = 0; i < rows->rows(); ++i)
    closeness.push_back(scalar_product(made.rows.const_data_ptr<float>() + i * 32,
                                       clusters.centroids.const_data_ptr<float>() + clusters.labels[static_cast<size_t>(i)] * 32, 32));
  const std::vector<float> nearest = nearest_before(*rows, clusters.labels, closeness, 6);
  const Deduplicated found = drop_duplicates(nearest, 1e-3);
  std::set<int64_t> kept(found.kept.begin(), found.kept.end());
  int64_t pairs_with_one = 0, originals_lost = 0;
  for (int64_t i = 0; i < 900; ++i) pairs_with_one += kept.contains(i) + kept.contains(3000 + i) == 1;
  for (int64_t i = 900; i < 3000; ++i) originals_lost += !kept.contains(i);
  EXPECT_GE(pairs_with_one, 891) << "of 900 pairs one stays";
  EXPECT_LE(originals_lost, 21);
  const Deduplicated exact = keep_least_duplicate(nearest, 3000);
  EXPECT_EQ(exact.kept.size(), 3000u);
  EXPECT_LT(exact.eps, 0.5);
  for (const int ranks : {2, 3}) {
    std::vector<float> sum(nearest.size(), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<float> part = nearest_before(*rows, clusters.labels, closeness, 6, {.rank = rank, .ranks = ranks});
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    EXPECT_EQ(sum, nearest) << ranks << " ranks";
  }
}

TEST(Dedup, AlwaysKeepsOneOfIdenticalRows) {
  const at::Tensor rows = unit_rows(1, 8, 22).expand({50, 8}).contiguous();
  const std::vector<int32_t> labels(50, 0);
  const std::vector<float> closeness(50, 1.0f);
  EXPECT_EQ(drop_duplicates(nearest_before(*rows_in_memory(rows), labels, closeness, 1), 0.01).kept, std::vector<int64_t>{0});
}

// A cluster that k-means could not divide: rows are compared with the first ones and with those just before them.
TEST(Dedup, ComparesCopiesInAClusterAboveTheCap) {
  const at::Tensor rows = unit_rows(1, 8, 22).expand({9000, 8}).contiguous();
  const std::vector<int32_t> labels(9000, 0);
  const std::vector<float> closeness(9000, 1.0f);
  const std::vector<float> nearest = nearest_before(*rows_in_memory(rows), labels, closeness, 1, {.compared_max = 3072});
  EXPECT_EQ(drop_duplicates(nearest, 0.01).kept, std::vector<int64_t>{0});
}

// Ranks as threads that wait for each other at every sum.
class SummingRanks {
 public:
  explicit SummingRanks(int ranks) : ranks_(ranks), barrier_(ranks) {}
  RowShare share(int64_t rows, int rank) {
    RowShare share = share_of_rank(rows, rank, ranks_);
    share.add_ranks = [this, rank](std::span<double> numbers) {
      if (rank == 0) sums_.assign(numbers.size(), 0);
      for (int turn = 0; turn < ranks_; ++turn) {
        barrier_.arrive_and_wait();
        if (turn == rank)
          for (size_t i = 0; i < numbers.size(); ++i) sums_[i] += numbers[i];
      }
      barrier_.arrive_and_wait();
      std::ranges::copy(sums_, numbers.begin());
      barrier_.arrive_and_wait();
    };
    return share;
  }

 private:
  int ranks_;
  std::barrier<> barrier_;
  std::vector<double> sums_;
};

TEST(Dedup, DividesLargeClustersAlikeOnAnyRanks) {
  const Planted made = planted_copies(6000, 1500, 24, 51);
  const auto rows = rows_in_memory(made.rows);
  const KMeans whole = k_means(*rows, {.clusters = 2, .spherical = true, .seed = 1});
  constexpr int64_t kMembersMax = 800;
  KMeans divided = whole;
  EXPECT_GE(split_large_clusters(*rows, {.members_max = kMembersMax, .seed = 4}, divided), 2);
  EXPECT_LE(*std::ranges::max_element(divided.sizes), kMembersMax);
  EXPECT_EQ(divided.centroids.size(0), std::ssize(divided.sizes));
  std::vector<int64_t> sizes(divided.sizes.size(), 0);
  for (const int32_t label : divided.labels) ++sizes[static_cast<size_t>(label)];
  EXPECT_EQ(sizes, divided.sizes);
  int64_t together = 0;
  for (int64_t i = 0; i < 1500; ++i)
    together += divided.labels[static_cast<size_t>(i)] == divided.labels[static_cast<size_t>(made.copies[static_cast<size_t>(i)])];
  EXPECT_GE(together, 1470) << "a copy stays with its original";
  SummingRanks ranks(3);
  std::vector<KMeans> found(3, whole);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      split_large_clusters(*rows, {.members_max = kMembersMax, .seed = 4, .share = [&, rank](int64_t of) { return ranks.share(of, rank); }},
                           found[static_cast<size_t>(rank)]);
    });
  for (std::thread& one : threads) one.join();
  for (const KMeans& one : found) {
    EXPECT_EQ(one.labels, divided.labels);
    EXPECT_TRUE(at::equal(one.centroids, divided.centroids));
  }
}

TEST(Dedup, LeavesCopiesOfOneRowTogether) {
  const at::Tensor rows = unit_rows(1, 8, 22).expand({500, 8}).contiguous();
  const auto source = rows_in_memory(rows);
  KMeans clusters = k_means(*source, {.clusters = 1, .spherical = true});
  EXPECT_EQ(split_large_clusters(*source, {.members_max = 100}, clusters), 0);
  EXPECT_EQ(clusters.sizes, std::vector<int64_t>{500});
}

}  // namespace
}  // namespace cairn::data
