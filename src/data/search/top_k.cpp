// Search in tiles: rows of the source times queries. A product in fp32 is off by at most dim * 2^-24 * |q| |x|, so every row whose product
// comes that close to the worst match kept so far is scored again in double precision, and only that score decides.
#include "data/search/top_k.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "data/search/score_scan.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"

namespace cairn::data {
namespace {

constexpr int64_t kTileRows = 1024, kTileQueries = 256;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The best k matches of one query so far.
class BestMatches {
 public:
  void start(int64_t k, std::optional<Match> after) {
    k_ = static_cast<size_t>(k);
    after_ = after;
  }
  void add(const Match& match) {
    if (after_ && !is_better(*after_, match)) return;
    if (full_ && !is_better(match, worst_)) return;
    found_.push_back(match);
    if (found_.size() >= 2 * k_) keep_best();
  }
  // No row with a lower score gets in. Known once k matches were found.
  float bound() const { return full_ ? worst_.score : kLowest; }
  std::vector<Match> take() {
    std::ranges::sort(found_, is_better);
    if (found_.size() > k_) found_.resize(k_);
    return std::move(found_);
  }

 private:
  void keep_best() {
    std::nth_element(found_.begin(), found_.begin() + static_cast<std::ptrdiff_t>(k_) - 1, found_.end(), is_better);
    found_.resize(k_);
    worst_ = found_.back();
    full_ = true;
  }
  size_t k_ = 1;
  std::optional<Match> after_;
  std::vector<Match> found_;
  Match worst_;
  bool full_ = false;
};

void raise(std::atomic<float>& value, float to) {
  for (float old = value.load(std::memory_order_relaxed); old < to;)
    if (value.compare_exchange_weak(old, to, std::memory_order_relaxed)) return;
}

std::vector<float> lengths_of(const at::Tensor& rows) {
  std::vector<float> lengths(static_cast<size_t>(rows.size(0)));
  const auto* x = rows.const_data_ptr<float>();
  for (size_t i = 0; i < lengths.size(); ++i) {
    const float* row = x + static_cast<int64_t>(i) * rows.size(1);
    lengths[i] = std::sqrt(scalar_product(row, row, rows.size(1)));
  }
  return lengths;
}

// How far a product in fp32 may be off, for vectors of length 1.
float product_error(int64_t dim) { return static_cast<float>(dim + 4) * 0x1p-23f; }

struct QueryTile {
  int64_t first = 0;
  at::Tensor vectors = {};  // [queries, dim]
  float longest = 0;
};

struct RowTile {
  int64_t first = 0, count = 0;
  at::Tensor vectors = {};  // [count, dim]
  float longest = 0;
  at::Tensor half_squares = {};  // [1, count] of the lengths; of distances alone
};

std::vector<QueryTile> query_tiles(const at::Tensor& queries, int64_t dim) {
  CAIRN_CHECK(queries.dim() == 2 && queries.size(1) == dim, "queries with {} columns for rows with {}", queries.size(-1), dim);
  const at::Tensor all = queries.to(at::kFloat).contiguous();
  std::vector<QueryTile> tiles;
  for (int64_t first = 0; first < all.size(0); first += kTileQueries) {
    QueryTile tile{first, all.narrow(0, first, std::min(kTileQueries, all.size(0) - first))};
    tile.longest = std::ranges::max(lengths_of(tile.vectors));
    tiles.push_back(std::move(tile));
  }
  return tiles;
}

struct Range {
  int64_t first, end;
};
Range range_of(const RowSource& rows, const RowShare& share) {
  return share.count < 0 ? Range{0, rows.rows()} : Range{share.first, share.first + share.count};
}

RowTile read_tile(const RowSource& rows, int64_t first, int64_t count) {
  RowTile tile{first, count, rows.read(first, count)};
  tile.longest = std::ranges::max(lengths_of(tile.vectors));
  return tile;
}

// Calls act(tile, thread) for the rows of a range, on several threads.
template <typename Act>
void for_each_tile(const RowSource& rows, const Range& range, const std::function<void(int64_t, int64_t)>& progress, const Act& act) {
  std::atomic<int64_t> done = 0;
  kernels::parallel_tasks((range.end - range.first + kTileRows - 1) / kTileRows, [&](int64_t task, int thread) {
    const at::NoGradGuard no_grad;
    const int64_t first = range.first + task * kTileRows, count = std::min(kTileRows, range.end - first);
    act(read_tile(rows, first, count), thread);
    const int64_t now = done.fetch_add(count) + count;
    if (progress && thread == 0) progress(now, range.end - range.first);
  });
}

class TopKSearch {
 public:
  TopKSearch(const at::Tensor& queries, const RowSource& rows, int64_t k, const TopKOptions& options)
      : rows_(rows),
        options_(options),
        tiles_(query_tiles(queries, rows.dim())),
        count_(static_cast<size_t>(queries.size(0))),
        bounds_(std::make_unique<std::atomic<float>[]>(count_)),
        by_thread_(static_cast<size_t>(at::get_num_threads())) {
    CAIRN_CHECK(k >= 1 && (options.after.empty() || options.after.size() == count_), "top_k of {}", k);
    for (size_t q = 0; q < count_; ++q) bounds_[q] = kLowest;
    for (std::vector<BestMatches>& lists : by_thread_) {
      lists.resize(count_);
      for (size_t q = 0; q < count_; ++q) lists[q].start(k, options.after.empty() ? std::nullopt : options.after[q]);
    }
    k_ = k;
  }

  std::vector<std::vector<Match>> run() {
    const bool distances = options_.metric == Metric::distance;
    for_each_tile(rows_, range_of(rows_, options_.share), options_.progress, [&](RowTile rows, int thread) {
      if (distances) rows.half_squares = ((rows.vectors * rows.vectors).sum(1) / 2).view({1, -1});
      for (const QueryTile& queries : tiles_) search(queries, rows, by_thread_[static_cast<size_t>(thread)]);
    });
    std::vector<std::vector<Match>> found(count_);
    kernels::parallel_rows(static_cast<int64_t>(count_), 16, [&](int64_t begin, int64_t end) {
      for (auto q = static_cast<size_t>(begin); q < static_cast<size_t>(end); ++q) {
        std::vector<std::vector<Match>> lists;
        for (std::vector<BestMatches>& one : by_thread_) lists.push_back(one[q].take());
        found[q] = merge_matches(lists, k_);
      }
    });
    return found;
  }

 private:
  void search(const QueryTile& queries, const RowTile& rows, std::vector<BestMatches>& lists) {
    const int64_t dim = rows_.dim();
    const bool distances = options_.metric == Metric::distance;
    at::Tensor scores = at::mm(queries.vectors, rows.vectors.t());
    if (distances) scores.sub_(rows.half_squares);
    // For distances the product is compared as <q, x> - |x|^2 / 2 = (|q|^2 - |q - x|^2) / 2.
    const float error = product_error(dim) * rows.longest * (queries.longest + (distances ? rows.longest : 0));
    std::vector<int32_t> columns;
    for (int64_t i = 0; i < queries.vectors.size(0); ++i) {
      const auto q = static_cast<size_t>(queries.first + i);
      const float* query = queries.vectors.const_data_ptr<float>() + i * dim;
      const float known = bounds_[q].load(std::memory_order_relaxed);
      float least = kLowest;
      if (known > kLowest && distances) least = (scalar_product(query, query, dim) + known) / 2 - 2 * error - std::abs(known) * 0x1p-20f;
      if (known > kLowest && !distances) least = known - error;
      columns.clear();
      columns_from(scores.const_data_ptr<float>() + i * rows.count, rows.count, least, columns);
      BestMatches& list = lists[q];
      for (const int32_t column : columns) {
        const float* row = rows.vectors.const_data_ptr<float>() + column * dim;
        list.add({rows.first + column, distances ? -squared_distance(query, row, dim) : scalar_product(query, row, dim)});
      }
      raise(bounds_[q], list.bound());
    }
  }

  const RowSource& rows_;
  const TopKOptions& options_;
  std::vector<QueryTile> tiles_;
  size_t count_;
  int64_t k_ = 1;
  std::unique_ptr<std::atomic<float>[]> bounds_;  // of each query: no row with a lower score is among the best k
  std::vector<std::vector<BestMatches>> by_thread_;
};

}  // namespace

std::vector<std::vector<Match>> top_k(const at::Tensor& queries, const RowSource& rows, int64_t k, const TopKOptions& options) {
  const at::NoGradGuard no_grad;
  if (queries.size(0) == 0) return {};
  return TopKSearch(queries, rows, k, options).run();
}

std::vector<Match> merge_matches(std::span<const std::vector<Match>> lists, int64_t k) {
  std::vector<Match> all;
  for (const std::vector<Match>& list : lists) all.insert(all.end(), list.begin(), list.end());
  std::ranges::sort(all, is_better);
  if (static_cast<int64_t>(all.size()) > k) all.resize(static_cast<size_t>(k));
  return all;
}

std::vector<float> best_scores(const at::Tensor& queries, const RowSource& rows, const RowShare& share,
                               const std::function<void(int64_t done, int64_t of)>& progress) {
  const at::NoGradGuard no_grad;
  const std::vector<QueryTile> tiles = query_tiles(queries, rows.dim());
  std::vector<float> best(static_cast<size_t>(rows.rows()));
  const int64_t dim = rows.dim();
  for_each_tile(rows, range_of(rows, share), progress, [&](const RowTile& tile, int) {
    std::vector<float> found(static_cast<size_t>(tile.count), kLowest);
    std::vector<int32_t> columns;
    for (const QueryTile& some : tiles) {
      const at::Tensor scores = at::mm(tile.vectors, some.vectors.t());
      const int64_t count = some.vectors.size(0);
      const float error = product_error(dim) * tile.longest * some.longest;
      for (int64_t i = 0; i < tile.count; ++i) {
        const float* row = scores.const_data_ptr<float>() + i * count;
        float& most = found[static_cast<size_t>(i)];
        columns.clear();
        columns_from(row, count, std::max(largest_of(row, count) - 2 * error, most - error), columns);
        for (const int32_t column : columns)
          most = std::max(most, scalar_product(tile.vectors.const_data_ptr<float>() + i * dim,
                                               some.vectors.const_data_ptr<float>() + column * dim, dim));
      }
    }
    std::ranges::copy(found, best.begin() + tile.first);
  });
  if (share.add_ranks) {
    std::vector<double> all(best.begin(), best.end());
    share.add_ranks(all);
    std::ranges::copy(all, best.begin());
  }
  return best;
}

}  // namespace cairn::data
