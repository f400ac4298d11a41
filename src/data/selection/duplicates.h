// SemDeDup: documents whose vectors are nearly those of another document of the same cluster.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/search/rows.h"

namespace cairn::data {

// Members of a cluster that are all compared with each other. Larger clusters are divided first (cluster_split.h).
constexpr int64_t kComparedMax = 16384;

struct NearestBeforeOptions {
  int64_t compared_max = kComparedMax;
  int rank = 0, ranks = 1;  // a rank does its share of the work; its results for other rows are 0 until ranks are added up
  std::function<void(std::span<double>)> add_ranks = {};
  std::function<void(int64_t done, int64_t of)> progress = {};
};

// For each row the highest scalar product with any row that comes before it in its cluster, and at least 0; the order within a cluster is
// by rising `closeness` to the centroid, of equal ones by position. A row is a duplicate where this exceeds 1 - eps. The first row of a
// cluster has 0, so it always stays. Rows have unit length. In a cluster of more than `compared_max` members a row is compared with about
// `compared_max` others: the first ones of the cluster, and those just before it. Threads and ranks change no bit of the result.
std::vector<float> nearest_before(const RowSource& rows, std::span<const int32_t> labels, std::span<const float> closeness,
                                  int64_t clusters, const NearestBeforeOptions& options = {});

struct Deduplicated {
  std::vector<int64_t> kept;  // positions, ascending
  double eps = 0;
};
// Those that are no duplicates for this eps.
Deduplicated drop_duplicates(std::span<const float> nearest, double eps);
// The `keep` least duplicate ones, and the eps that gives them (of equal ones the first stay).
Deduplicated keep_least_duplicate(std::span<const float> nearest, int64_t keep);

}  // namespace cairn::data
