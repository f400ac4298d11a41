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
#include "data/search/device_scores.h"
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

// Calls act(tile) for the rows of a range, in larger tiles.
template <typename Act>
void for_each_device_tile(const RowSource& rows, const Range& range, const std::function<void(int64_t, int64_t)>& progress,
                          const Act& act) {
  for (int64_t first = range.first, count = 0; first < range.end; first += count) {
    count = std::min(device_tile_rows(rows.dim()), range.end - first);
    RowTile tile{first, count, read_in_parallel(rows, first, count)};
    tile.longest = std::ranges::max(lengths_of(tile.vectors));
    act(tile);
    if (progress) progress(first + count - range.first, range.end - range.first);
  }
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
    if (options_.device)
      run_on_device(*options_.device);
    else
      for_each_tile(rows_, range_of(rows_, options_.share), options_.progress, [&](RowTile rows, int thread) {
        if (by_distance()) rows.half_squares = half_squares_of(rows.vectors);
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
  bool by_distance() const { return options_.metric == Metric::distance; }
  static at::Tensor half_squares_of(const at::Tensor& rows) { return ((rows * rows).sum(1) / 2).view({1, -1}); }

  // How far a score of these may be off. Distances are compared as <q, x> - |x|^2 / 2 = (|q|^2 - |q - x|^2) / 2.
  float error_of(const QueryTile& queries, const RowTile& rows) const {
    return product_error(rows_.dim()) * rows.longest * (queries.longest + (by_distance() ? rows.longest : 0));
  }
  // The score from which on a row may be among the best k of a query, by what is known of it so far.
  float least_score(const QueryTile& queries, int64_t i, float error) const {
    const float known = bounds_[static_cast<size_t>(queries.first + i)].load(std::memory_order_relaxed);
    if (known == kLowest) return kLowest;
    if (!by_distance()) return known - error;
    const float* query = queries.vectors.const_data_ptr<float>() + i * rows_.dim();
    return (scalar_product(query, query, rows_.dim()) + known) / 2 - 2 * error - std::abs(known) * 0x1p-20f;
  }
  // Scores these rows exactly.
  template <typename Columns>
  void add(const QueryTile& queries, int64_t i, const RowTile& rows, const Columns& columns, BestMatches& list) {
    const int64_t dim = rows_.dim();
    const float* query = queries.vectors.const_data_ptr<float>() + i * dim;
    for (const auto column : columns) {
      const float* row = rows.vectors.const_data_ptr<float>() + column * dim;
      list.add({rows.first + column, by_distance() ? -squared_distance(query, row, dim) : scalar_product(query, row, dim)});
    }
    raise(bounds_[static_cast<size_t>(queries.first + i)], list.bound());
  }

  void search(const QueryTile& queries, const RowTile& rows, std::vector<BestMatches>& lists) {
    at::Tensor scores = at::mm(queries.vectors, rows.vectors.t());
    if (by_distance()) scores.sub_(rows.half_squares);
    const float error = error_of(queries, rows);
    std::vector<int32_t> columns;
    for (int64_t i = 0; i < queries.vectors.size(0); ++i) {
      columns.clear();
      columns_from(scores.const_data_ptr<float>() + i * rows.count, rows.count, least_score(queries, i, error), columns);
      add(queries, i, rows, columns, lists[static_cast<size_t>(queries.first + i)]);
    }
  }

  void run_on_device(at::Device device) {
    std::vector<at::Tensor> queries_there;
    for (const QueryTile& queries : tiles_) queries_there.push_back(queries.vectors.to(device));
    for_each_device_tile(rows_, range_of(rows_, options_.share), options_.progress, [&](const RowTile& rows) {
      const at::Tensor rows_there = rows.vectors.to(device), half_squares = by_distance() ? half_squares_of(rows_there) : at::Tensor();
      for (size_t t = 0; t < tiles_.size(); ++t) {
        at::Tensor scores = full_product(queries_there[t], rows_there);
        if (by_distance()) scores.sub_(half_squares);
        search_scored(tiles_[t], rows, scores);
      }
    });
  }

  // Beside what is known, the k-th best score within the tile bounds the best k from below, unless some of these rows do not count.
  void search_scored(const QueryTile& queries, const RowTile& rows, const at::Tensor& scores) {
    const float error = error_of(queries, rows);
    std::vector<float> least(static_cast<size_t>(queries.vectors.size(0)));
    for (size_t i = 0; i < least.size(); ++i) least[i] = least_score(queries, static_cast<int64_t>(i), error);
    at::Tensor bounds = numbers_beside(least, scores);
    if (options_.after.empty() && k_ <= rows.count) {
      const float lengths = queries.longest + rows.longest, rounding = by_distance() ? 4 * error + lengths * lengths * 0x1p-20f : 2 * error;
      bounds = bounds.maximum(std::get<0>(scores.topk(k_, 1)).select(1, k_ - 1) - rounding);
    }
    const ReachedColumns reached = columns_reaching(scores, bounds);
    kernels::parallel_rows(std::ssize(least), 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) add(queries, i, rows, reached.of_row(i), by_thread_[0][static_cast<size_t>(queries.first + i)]);
    });
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

namespace {

// Raises most to the highest exact score of a row with these of the queries.
template <typename Columns>
void raise_to_best(const RowTile& rows, int64_t i, const QueryTile& queries, const Columns& columns, float& most) {
  const int64_t dim = rows.vectors.size(1);
  for (const auto column : columns)
    most = std::max(
        most, scalar_product(rows.vectors.const_data_ptr<float>() + i * dim, queries.vectors.const_data_ptr<float>() + column * dim, dim));
}

void best_of_tile(const RowTile& tile, const std::vector<QueryTile>& tiles, std::vector<float>& found) {
  std::vector<int32_t> columns;
  for (const QueryTile& some : tiles) {
    const at::Tensor scores = at::mm(tile.vectors, some.vectors.t());
    const int64_t count = some.vectors.size(0);
    const float error = product_error(tile.vectors.size(1)) * tile.longest * some.longest;
    for (int64_t i = 0; i < tile.count; ++i) {
      const float* row = scores.const_data_ptr<float>() + i * count;
      float& most = found[static_cast<size_t>(i)];
      columns.clear();
      columns_from(row, count, std::max(largest_of(row, count) - 2 * error, most - error), columns);
      raise_to_best(tile, i, some, columns, most);
    }
  }
}

void best_of_tile_on(at::Device device, const RowTile& tile, const std::vector<QueryTile>& tiles, std::vector<float>& found) {
  const at::Tensor rows_there = tile.vectors.to(device);
  for (const QueryTile& some : tiles) {
    const at::Tensor scores = full_product(rows_there, some.vectors.to(device));
    const float error = product_error(tile.vectors.size(1)) * tile.longest * some.longest;
    const ReachedColumns reached = columns_reaching(scores, (scores.amax(1) - 2 * error).maximum(numbers_beside(found, scores) - error));
    kernels::parallel_rows(tile.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) raise_to_best(tile, i, some, reached.of_row(i), found[static_cast<size_t>(i)]);
    });
  }
}

}  // namespace

std::vector<float> best_scores(const at::Tensor& queries, const RowSource& rows, const RowShare& share,
                               const std::function<void(int64_t done, int64_t of)>& progress, const std::optional<at::Device>& device) {
  const at::NoGradGuard no_grad;
  const std::vector<QueryTile> tiles = query_tiles(queries, rows.dim());
  std::vector<float> best(static_cast<size_t>(rows.rows()));
  const auto take = [&](const RowTile& tile, const auto& best_of) {
    std::vector<float> found(static_cast<size_t>(tile.count), kLowest);
    best_of(found);
    std::ranges::copy(found, best.begin() + tile.first);
  };
  if (device)
    for_each_device_tile(rows, range_of(rows, share), progress, [&](const RowTile& tile) {
      take(tile, [&](std::vector<float>& found) { best_of_tile_on(*device, tile, tiles, found); });
    });
  else
    for_each_tile(rows, range_of(rows, share), progress,
                  [&](const RowTile& tile, int) { take(tile, [&](std::vector<float>& found) { best_of_tile(tile, tiles, found); }); });
  if (share.add_ranks) {
    std::vector<double> all(best.begin(), best.end());
    share.add_ranks(all);
    std::ranges::copy(all, best.begin());
  }
  return best;
}

}  // namespace cairn::data
