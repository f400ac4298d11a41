// SemDeDup: documents whose vectors are nearly those of another document of the same cluster.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/search/rows.h"

namespace cairn::data {

// For each row the highest scalar product with any row that comes before it in its cluster, and at least 0; the order within a cluster is
// by rising `closeness` to the centroid, of equal ones by position. A row is a duplicate where this exceeds 1 - eps. The first row of a
// cluster has 0, so it always stays. Rows have unit length. A rank that has a share of the work computes whole clusters; its results for
// other clusters are 0 until ranks are added up.
std::vector<float> nearest_before(const RowSource& rows, std::span<const int32_t> labels, std::span<const float> closeness,
                                  int64_t clusters, int rank = 0, int ranks = 1,
                                  const std::function<void(std::span<double>)>& add_ranks = {},
                                  const std::function<void(int64_t done, int64_t of)>& progress = {});

struct Deduplicated {
  std::vector<int64_t> kept;  // positions, ascending
  double eps = 0;
};
// Those that are no duplicates for this eps.
Deduplicated drop_duplicates(std::span<const float> nearest, double eps);
// The `keep` least duplicate ones, and the eps that gives them (of equal ones the first stay).
Deduplicated keep_least_duplicate(std::span<const float> nearest, int64_t keep);

}  // namespace cairn::data
