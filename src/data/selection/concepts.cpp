// Density-based pruning (Abbas et al., "Effective pruning of web-scale datasets based on complexity of concept clusters"):
//
//   C_j = d_inter(j) d_intra(j)                       complexity of cluster j
//   P   = softmax(C / temperature)                    target share
//   x   = argmin sum_j (x_j - P_j N)^2,  sum_j x_j = N,  l_j <= x_j <= u_j        quota (quota.h)
//
// with u_j the size of the cluster and l_j = min(floor(balance N / k), u_j), at least one.
#include "data/selection/concepts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "base/random.h"
#include "data/search/rows.h"
#include "data/selection/quota.h"

namespace cairn::data {
namespace {

// Mean distance of each centroid to its nearest others; clusters without members are no neighbours.
void measure_neighbours(std::vector<ConceptCluster>& clusters, const at::Tensor& centroids, int64_t neighbours) {
  const int64_t dim = centroids.size(1);
  const auto* x = centroids.const_data_ptr<float>();
  for (size_t j = 0; j < clusters.size(); ++j) {
    std::vector<double> distances;
    for (size_t other = 0; other < clusters.size(); ++other)
      if (other != j && clusters[other].size > 0)
        distances.push_back(
            1 - static_cast<double>(scalar_product(x + static_cast<int64_t>(j) * dim, x + static_cast<int64_t>(other) * dim, dim)));
    const auto count = std::min(static_cast<size_t>(neighbours), distances.size());
    if (count == 0) continue;
    std::ranges::nth_element(distances, distances.begin() + static_cast<std::ptrdiff_t>(count) - 1);
    clusters[j].inter =
        std::accumulate(distances.begin(), distances.begin() + static_cast<std::ptrdiff_t>(count), 0.0) / static_cast<double>(count);
  }
}

// Clusters with fewer than two members have no spread of their own: they get the mean of the others.
void set_complexity(std::vector<ConceptCluster>& clusters) {
  double sum = 0, defined = 0;
  for (ConceptCluster& one : clusters) {
    one.complexity = one.inter * one.intra;
    if (one.size > 1) sum += one.complexity, defined += 1;
  }
  for (ConceptCluster& one : clusters)
    if (one.size <= 1) one.complexity = defined > 0 ? sum / defined : 0;
}

void set_shares(std::vector<ConceptCluster>& clusters, const ConceptOptions& options) {
  double most = -INFINITY, total = 0, documents = 0;
  for (const ConceptCluster& one : clusters) {
    most = std::max(most, one.complexity);
    documents += static_cast<double>(one.size);
  }
  for (ConceptCluster& one : clusters) {
    switch (options.shares) {
      case ConceptShares::density:
        one.share = std::exp((one.complexity - most) / options.temperature);
        break;
      case ConceptShares::uniform:
        one.share = 1;
        break;
      case ConceptShares::proportional:
      case ConceptShares::global:
        one.share = static_cast<double>(one.size) / documents;
        break;
    }
    total += one.share;
  }
  for (ConceptCluster& one : clusters) one.share /= total;
}

void set_quotas(ConceptResult& result, const ConceptOptions& options) {
  std::vector<double> wanted;
  std::vector<int64_t> lower, upper;
  const auto k = static_cast<double>(result.clusters.size()), keep = static_cast<double>(options.keep);
  const auto least = static_cast<int64_t>(std::floor(options.balance * keep / k));
  for (const ConceptCluster& one : result.clusters) {
    wanted.push_back(one.share * keep);
    upper.push_back(one.size);
    lower.push_back(std::min(std::max<int64_t>(least, options.shares == ConceptShares::proportional ? 0 : 1), one.size));
  }
  if (std::accumulate(lower.begin(), lower.end(), int64_t{0}) > options.keep)
    base::fail_input("--keep {}: {} clusters with at least one document each need more. Keep more, or use fewer --clusters.", options.keep,
                     result.clusters.size());
  const Projection projection = project_onto_total(wanted, lower, upper, options.keep);
  const std::vector<int64_t> quotas = round_to_total(projection.x, upper, options.keep);
  result.lambda = projection.lambda;
  for (size_t j = 0; j < quotas.size(); ++j) {
    result.clusters[j].quota = quotas[j];
    result.at_lower += quotas[j] <= lower[j];
    result.at_upper += quotas[j] >= upper[j];
  }
}

// Orders positions by how readily they are kept.
std::vector<int64_t> by_preference(std::vector<int64_t> members, std::span<const int64_t> ids, std::span<const float> closeness,
                                   const ConceptOptions& options) {
  const base::Random random = base::Random(options.seed).for_purpose("concept");
  const auto key = [&](int64_t position) {
    const auto at = static_cast<size_t>(position);
    if (options.within == ConceptPick::random) return random.uniform(static_cast<uint64_t>(ids[at]));
    return static_cast<double>(options.within == ConceptPick::hard ? closeness[at] : -closeness[at]);
  };
  std::vector<std::pair<double, int64_t>> keyed;
  for (const int64_t one : members) keyed.emplace_back(key(one), one);
  std::ranges::sort(keyed);
  for (size_t i = 0; i < members.size(); ++i) members[i] = keyed[i].second;
  return members;
}

}  // namespace

ConceptResult prune_concepts(std::span<const int64_t> ids, std::span<const int32_t> labels, std::span<const float> closeness,
                             const at::Tensor& centroids, const ConceptOptions& options) {
  const auto documents = static_cast<int64_t>(labels.size());
  if (options.keep > documents) base::fail_input("--keep {}: there are {} documents. Keep at most these.", options.keep, documents);
  if (options.temperature <= 0) base::fail_input("--temperature {}: must be above 0", options.temperature);
  ConceptResult result;
  result.clusters.resize(static_cast<size_t>(centroids.size(0)));
  std::vector<std::vector<int64_t>> members(result.clusters.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    ConceptCluster& cluster = result.clusters[static_cast<size_t>(labels[i])];
    ++cluster.size;
    cluster.intra += 1 - static_cast<double>(closeness[i]);
    members[static_cast<size_t>(labels[i])].push_back(static_cast<int64_t>(i));
  }
  for (ConceptCluster& one : result.clusters)
    if (one.size > 0) one.intra /= static_cast<double>(one.size);
  measure_neighbours(result.clusters, centroids.contiguous(), options.neighbours);
  set_complexity(result.clusters);
  set_shares(result.clusters, options);
  const auto [least, most] = std::ranges::minmax(result.clusters, {}, &ConceptCluster::share);
  result.share_ratio = least.share > 0 ? most.share / least.share : INFINITY;
  if (options.shares == ConceptShares::global) {
    std::vector<int64_t> all(labels.size());
    std::iota(all.begin(), all.end(), 0);
    result.kept = by_preference(std::move(all), ids, closeness, options);
    result.kept.resize(static_cast<size_t>(options.keep));
    for (const int64_t position : result.kept) ++result.clusters[static_cast<size_t>(labels[static_cast<size_t>(position)])].quota;
  } else {
    set_quotas(result, options);
    for (size_t j = 0; j < members.size(); ++j) {
      const std::vector<int64_t> order = by_preference(std::move(members[j]), ids, closeness, options);
      result.kept.insert(result.kept.end(), order.begin(), order.begin() + result.clusters[j].quota);
    }
  }
  std::ranges::sort(result.kept);
  return result;
}

}  // namespace cairn::data
