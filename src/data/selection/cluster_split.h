// Divides clusters that are too large for comparing all members with each other: without it the largest cluster decides how long
// deduplication takes, which grows with its square.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "data/search/k_means.h"

namespace cairn::data {

struct ClusterSplitOptions {
  int64_t members_max = 1;
  uint64_t seed = 0;
  std::function<RowShare(int64_t rows)> share = {};  // of this rank, of so many rows; empty: one rank
  std::optional<at::Device> device = {};
};

// Divides each cluster of more than `members_max` members by spherical k-means of its own, until none is larger. New clusters come after
// the others. What k-means cannot tell apart (copies of one row) stays together. The same on any number of threads and ranks. Returns how
// many clusters were divided.
int64_t split_large_clusters(const RowSource& rows, const ClusterSplitOptions& options, KMeans& clusters);

}  // namespace cairn::data
