// Exact search: the rows with the highest scalar product with each query, or nearest to it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "data/search/rows.h"

namespace cairn::data {

struct Match {
  int64_t id = 0;
  float score = 0;  // scalar_product, or minus squared_distance
  bool operator==(const Match&) const = default;
};
// The order of results: by falling score; of equal scores, the smaller id first.
inline bool is_better(const Match& a, const Match& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; }

enum class Metric { scalar_product, distance };

struct TopKOptions {
  Metric metric = Metric::scalar_product;
  // Only rows that come after this match in the order of each query's results: goes on where an earlier search ended. Empty: all rows.
  std::vector<std::optional<Match>> after = {};
  RowShare share = {};                                          // searches these rows alone
  std::optional<at::Device> device = {};                        // of the products; a CPU does as a GPU would. Changes no result
  std::function<void(int64_t done, int64_t of)> progress = {};  // of rows; may be empty
};

// The best `k` rows for each query [queries, dim], best first; fewer where there are no more. Never holds a score for each query and row:
// matrix products of tiles find candidates, whose scores are then computed as scalar_product does. So the result equals that of comparing
// all, whatever the tiles, threads, shares and device.
std::vector<std::vector<Match>> top_k(const at::Tensor& queries, const RowSource& rows, int64_t k, const TopKOptions& options = {});

// The best `k` of several such lists, of different rows.
std::vector<Match> merge_matches(std::span<const std::vector<Match>> lists, int64_t k);

// For each row of the share, its highest scalar product with any of the queries; rows outside have 0. Exact as above.
std::vector<float> best_scores(const at::Tensor& queries, const RowSource& rows, const RowShare& share = {},
                               const std::function<void(int64_t done, int64_t of)>& progress = {},
                               const std::optional<at::Device>& device = {});

}  // namespace cairn::data
