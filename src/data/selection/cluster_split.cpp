#include "data/selection/cluster_split.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/IListRef.h>

#include "base/random.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

constexpr int64_t kPartsMax = 64, kSplitIterations = 10;
constexpr double kSplitChangedMax = 0.01;
constexpr double kTogether = 0.95;  // where one part has this share of the rows, k-means cannot tell them apart

std::vector<std::vector<int64_t>> members_above(const std::vector<int32_t>& labels, size_t clusters, int64_t members_max) {
  std::vector<std::vector<int64_t>> members(clusters);
  for (size_t row = 0; row < labels.size(); ++row) members[static_cast<size_t>(labels[row])].push_back(static_cast<int64_t>(row));
  std::erase_if(members, [&](const std::vector<int64_t>& one) { return std::ssize(one) <= members_max; });
  return members;
}

}  // namespace

int64_t split_large_clusters(const RowSource& rows, const ClusterSplitOptions& options, KMeans& clusters) {
  std::vector<std::vector<int64_t>> large = members_above(clusters.labels, clusters.sizes.size(), options.members_max);
  const base::Random seeds = base::Random(options.seed).for_purpose("split clusters");
  int64_t divided = 0;
  while (!large.empty()) {
    const std::vector<int64_t> members = std::exchange(large.back(), {});
    large.pop_back();
    const int64_t count = std::ssize(members);
    const auto source = chosen_rows(rows, members);
    // Parts of half the allowed size, so that few are divided again.
    const KMeans parts = k_means(*source,
                                 {.clusters = std::clamp<int64_t>(2 * count / options.members_max, 2, std::min(kPartsMax, count)),
                                  .spherical = true,
                                  .iterations = kSplitIterations,
                                  .changed_max = kSplitChangedMax,
                                  .seed = seeds.bits64(static_cast<uint64_t>(members[0])),
                                  .device = options.device},
                                 options.share ? options.share(count) : RowShare());
    if (static_cast<double>(*std::ranges::max_element(parts.sizes)) > kTogether * static_cast<double>(count)) continue;
    ++divided;
    // The first part keeps the number of the cluster.
    const int32_t old = clusters.labels[static_cast<size_t>(members[0])];
    const auto added = static_cast<int32_t>(clusters.sizes.size());
    std::vector<std::vector<int64_t>> of_part(parts.sizes.size());
    for (size_t i = 0; i < members.size(); ++i) {
      const int32_t part = parts.labels[i];
      of_part[static_cast<size_t>(part)].push_back(members[i]);
      clusters.labels[static_cast<size_t>(members[i])] = part == 0 ? old : added + part - 1;
    }
    clusters.sizes[static_cast<size_t>(old)] = parts.sizes[0];
    clusters.sizes.insert(clusters.sizes.end(), parts.sizes.begin() + 1, parts.sizes.end());
    const int64_t number = std::ssize(parts.sizes);
    clusters.centroids = at::cat({clusters.centroids, parts.centroids.narrow(0, 1, number - 1)});
    clusters.centroids[old].copy_(parts.centroids[0]);
    for (std::vector<int64_t>& one : of_part)
      if (std::ssize(one) > options.members_max) large.push_back(std::move(one));
  }
  return divided;
}

}  // namespace cairn::data
