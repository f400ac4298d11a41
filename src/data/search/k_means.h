// k-means clustering (Lloyd's algorithm, k-means++ start), with Euclidean distance or on the unit sphere.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "data/search/rows.h"

namespace cairn::data {

struct KMeansOptions {
  int64_t clusters = 1;
  bool spherical = false;  // centroids have unit length; rows should too
  int64_t iterations = 25;
  int64_t restarts = 1;             // the start with the least inertia wins
  double changed_max = 0;           // ends when at most this share of the rows changes its cluster
  int64_t sample_per_cluster = 64;  // rows that k-means++ draws its start from, for each cluster
  uint64_t seed = 0;
  at::Tensor start = {};                                        // [clusters, dim]; undefined: k-means++
  std::optional<at::Device> device = {};                        // of the products; a CPU does as a GPU would. Changes no result
  std::function<void(int64_t done, int64_t of)> progress = {};  // of iterations; may be empty
};

struct KMeans {
  at::Tensor centroids;         // fp32 [clusters, dim]
  std::vector<int32_t> labels;  // the cluster of every row
  std::vector<int64_t> sizes;   // of every cluster; 0 only where rows repeat
  double inertia = 0;           // the sum of squared distances of rows to their centroids
  int64_t iterations = 0;
};

// Deterministic. Neither threads, ranks nor the device change any bit of the result: labels are settled in double precision where products
// come close (centroid_assignment.h), and sums are exact in double precision (rows are rounded to a multiple of a power of two far below
// their own precision). A cluster that loses all rows takes half of the largest. Refuses more clusters than rows, and rows that are not
// finite.
KMeans k_means(const RowSource& rows, const KMeansOptions& options, const RowShare& share = {});

}  // namespace cairn::data
