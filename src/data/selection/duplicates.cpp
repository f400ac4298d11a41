// For each cluster: members in the order of rising closeness to the centroid ("hard" first), and
//
//   nearest_i = max(0, max over j < i of <x_i, x_j>)
//
// from products of tiles of 1024 members, above the diagonal alone. A cluster is the work of one thread, so the tiles, and with them the
// rounding, are always the same.
#include "data/selection/duplicates.h"

#include <algorithm>
#include <atomic>
#include <cmath>
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

// Clusters with their rank: the largest first, each to the rank with the least work so far.
std::vector<size_t> clusters_of_rank(const std::vector<std::vector<int64_t>>& members, int rank, int ranks) {
  std::vector<size_t> order(members.size()), mine;
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return members[a].size() > members[b].size(); });
  std::vector<double> work(static_cast<size_t>(ranks), 0);
  for (const size_t cluster : order) {
    const auto least = static_cast<size_t>(std::ranges::min_element(work) - work.begin());
    const auto size = static_cast<double>(members[cluster].size());
    work[least] += size * size + 1;
    if (static_cast<int>(least) == rank) mine.push_back(cluster);
  }
  return mine;
}

// Scores of the rows of a tile against themselves count only above the diagonal.
void raise_below_diagonal(const at::Tensor& products, std::vector<float>& most, int64_t first) {
  const auto* scores = products.const_data_ptr<float>();
  for (int64_t i = 1; i < products.size(0); ++i) {
    float& one = most[static_cast<size_t>(first + i)];
    one = std::max(one, largest_of(scores + i * products.size(1), i));
  }
}

void nearest_in_cluster(const RowSource& rows, const std::vector<int64_t>& members, std::vector<double>& nearest) {
  const auto size = static_cast<int64_t>(members.size());
  const auto source = chosen_rows(rows, members);
  std::vector<float> most(members.size(), 0);
  for (int64_t first = 0; first < size; first += kTileMembers) {
    const int64_t count = std::min(kTileMembers, size - first);
    const at::Tensor tile = source->read(first, count);
    for (int64_t before = 0; before < first; before += kTileMembers) {
      const at::Tensor products = at::mm(tile, source->read(before, kTileMembers).t());
      for (int64_t i = 0; i < count; ++i) {
        float& one = most[static_cast<size_t>(first + i)];
        one = std::max(one, largest_of(products.const_data_ptr<float>() + i * kTileMembers, kTileMembers));
      }
    }
    raise_below_diagonal(at::mm(tile, tile.t()), most, first);
  }
  for (size_t i = 0; i < members.size(); ++i) nearest[static_cast<size_t>(members[i])] = static_cast<double>(most[i]);
}

}  // namespace

std::vector<float> nearest_before(const RowSource& rows, std::span<const int32_t> labels, std::span<const float> closeness,
                                  int64_t clusters, int rank, int ranks, const std::function<void(std::span<double>)>& add_ranks,
                                  const std::function<void(int64_t done, int64_t of)>& progress) {
  CAIRN_CHECK(static_cast<int64_t>(labels.size()) == rows.rows() && labels.size() == closeness.size(), "{} labels of {} rows",
              labels.size(), rows.rows());
  const auto members = ordered_members(labels, closeness, clusters);
  const std::vector<size_t> mine = clusters_of_rank(members, rank, ranks);
  std::vector<double> nearest(labels.size(), 0);
  int64_t of = 0;
  for (const size_t cluster : mine) of += static_cast<int64_t>(members[cluster].size());
  std::atomic<int64_t> done = 0;
  kernels::parallel_tasks(static_cast<int64_t>(mine.size()), [&](int64_t task, int thread) {
    const at::NoGradGuard no_grad;
    const auto& cluster = members[mine[static_cast<size_t>(task)]];
    nearest_in_cluster(rows, cluster, nearest);
    const int64_t now = done.fetch_add(static_cast<int64_t>(cluster.size())) + static_cast<int64_t>(cluster.size());
    if (progress && thread == 0) progress(now, of);
  });
  if (add_ranks) add_ranks(nearest);
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
