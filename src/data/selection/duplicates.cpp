// For each cluster: members in the order of rising closeness to the centroid ("hard" first), and
//
//   nearest_i = max(0, max over j < i of <x_i, x_j>)
//
// from products of tiles of 1024 members, above the diagonal alone. A tile of a cluster, with the tiles before it, is the work of one
// thread, so the products, and with them the rounding, are always the same.
#include "data/selection/duplicates.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "data/search/score_scan.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"

namespace cairn::data {
namespace {

constexpr int64_t kTileMembers = 1024;

// Members of each cluster, in order.
std::vector<std::vector<int64_t>> ordered_members(std::span<const int32_t> labels, std::span<const float> closeness, int64_t clusters) {
  std::vector<std::vector<int64_t>> members(static_cast<size_t>(clusters));
  for (size_t i = 0; i < labels.size(); ++i) members[static_cast<size_t>(labels[i])].push_back(static_cast<int64_t>(i));
  for (auto& one : members)
    std::ranges::stable_sort(one,
                             [&](int64_t a, int64_t b) { return closeness[static_cast<size_t>(a)] < closeness[static_cast<size_t>(b)]; });
  return members;
}

// Members first .. first + kTileMembers - 1 of a cluster, against the tiles before them.
struct TileOfCluster {
  size_t cluster = 0;
  int64_t first = 0;
  int64_t tiles = 1;  // that it is compared with, itself included
};

// The tiles before one that it is compared with: all, or where the cluster is too large the first and the last ones.
std::vector<int64_t> tiles_before(int64_t first, int64_t compared_max) {
  std::vector<int64_t> before;
  const int64_t window = std::max<int64_t>(compared_max - 2 * kTileMembers, 0);
  for (int64_t other = 0; other < first; other += kTileMembers)
    if (other == 0 || first - other <= window) before.push_back(other);
  return before;
}

// Tiles with their rank: those with the most products first, each to the rank with the least work so far.
std::vector<TileOfCluster> tiles_of_rank(const std::vector<std::vector<int64_t>>& members, int64_t compared_max, int rank, int ranks) {
  std::vector<TileOfCluster> all, mine;
  for (size_t cluster = 0; cluster < members.size(); ++cluster)
    for (int64_t first = 0; first < std::ssize(members[cluster]); first += kTileMembers)
      all.push_back({cluster, first, 1 + std::ssize(tiles_before(first, compared_max))});
  std::ranges::stable_sort(all, std::ranges::greater{}, &TileOfCluster::tiles);
  std::vector<int64_t> work(static_cast<size_t>(ranks), 0);
  for (const TileOfCluster& one : all) {
    const auto least = static_cast<size_t>(std::ranges::min_element(work) - work.begin());
    work[least] += one.tiles;
    if (static_cast<int>(least) == rank) mine.push_back(one);
  }
  return mine;
}

void nearest_of_tile(const RowSource& rows, const std::vector<int64_t>& members, int64_t first, int64_t compared_max,
                     std::vector<double>& nearest) {
  const int64_t count = std::min(kTileMembers, std::ssize(members) - first);
  const auto source = chosen_rows(rows, members);
  std::vector<float> most(static_cast<size_t>(count), 0);
  const auto raise = [&](const at::Tensor& products, const auto& columns_of) {
    for (int64_t i = 0; i < count; ++i) {
      float& one = most[static_cast<size_t>(i)];
      one = std::max(one, largest_of(products.const_data_ptr<float>() + i * products.size(1), columns_of(i)));
    }
  };
  const at::Tensor tile = source->read(first, count);
  for (const int64_t before : tiles_before(first, compared_max))
    raise(at::mm(tile, source->read(before, kTileMembers).t()), [](int64_t) { return kTileMembers; });
  raise(at::mm(tile, tile.t()), [](int64_t i) { return i; });  // of its own rows only those above the diagonal come before
  for (int64_t i = 0; i < count; ++i)
    nearest[static_cast<size_t>(members[static_cast<size_t>(first + i)])] = static_cast<double>(most[static_cast<size_t>(i)]);
}

}  // namespace

std::vector<float> nearest_before(const RowSource& rows, std::span<const int32_t> labels, std::span<const float> closeness,
                                  int64_t clusters, const NearestBeforeOptions& options) {
  CAIRN_CHECK(static_cast<int64_t>(labels.size()) == rows.rows() && labels.size() == closeness.size(), "{} labels of {} rows",
              labels.size(), rows.rows());
  const auto members = ordered_members(labels, closeness, clusters);
  const std::vector<TileOfCluster> mine = tiles_of_rank(members, options.compared_max, options.rank, options.ranks);
  std::vector<double> nearest(labels.size(), 0);
  std::atomic<int64_t> done = 0;
  kernels::parallel_tasks(std::ssize(mine), [&](int64_t task, int thread) {
    const at::NoGradGuard no_grad;
    const TileOfCluster& tile = mine[static_cast<size_t>(task)];
    nearest_of_tile(rows, members[tile.cluster], tile.first, options.compared_max, nearest);
    const int64_t now = done.fetch_add(1) + 1;
    if (options.progress && thread == 0) options.progress(now, std::ssize(mine));
  });
  if (options.add_ranks) options.add_ranks(nearest);
  return {nearest.begin(), nearest.end()};
}

Deduplicated drop_duplicates(std::span<const float> nearest, double eps) {
  Deduplicated result{.kept = {}, .eps = eps};
  const auto limit = static_cast<float>(1 - eps);
  for (size_t i = 0; i < nearest.size(); ++i)
    if (nearest[i] <= limit) result.kept.push_back(static_cast<int64_t>(i));
  return result;
}

Deduplicated keep_least_duplicate(std::span<const float> nearest, int64_t keep) {
  CAIRN_CHECK(keep >= 1 && keep <= static_cast<int64_t>(nearest.size()), "{} of {}", keep, nearest.size());
  std::vector<int64_t> order(nearest.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return nearest[static_cast<size_t>(a)] < nearest[static_cast<size_t>(b)]; });
  order.resize(static_cast<size_t>(keep));
  Deduplicated result{.kept = order, .eps = 1 - static_cast<double>(nearest[static_cast<size_t>(order.back())])};
  std::ranges::sort(result.kept);
  return result;
}

}  // namespace cairn::data
