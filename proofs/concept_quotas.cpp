// Concept pruning, exactness: quotas against an optimum found by force, and duplicates that were planted.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/random.h"
#include "data/search/rows.h"
#include "data/selection/concepts.h"
#include "data/selection/quota.h"
#include "data/selection/simple_picks.h"
#include "evaluate/selection.h"
#include "kernels/aten.h"
#include "proofs/concept_points.h"

namespace cairn::study {
namespace {

std::vector<int64_t> sizes_of(const std::vector<int32_t>& labels) {
  std::vector<int64_t> sizes(kConcepts, 0);
  for (const int32_t label : labels) ++sizes[static_cast<size_t>(label)];
  return sizes;
}

// Of the true concepts as clusters.
at::Tensor centroids_of(const at::Tensor& rows, const std::vector<int32_t>& labels) {
  const at::Tensor centroids = at::zeros({kConcepts, kConceptDims});
  auto* sums = centroids.mutable_data_ptr<float>();
  const auto* x = rows.const_data_ptr<float>();
  for (size_t i = 0; i < labels.size(); ++i)
    for (int64_t d = 0; d < kConceptDims; ++d) sums[labels[i] * kConceptDims + d] += x[static_cast<int64_t>(i) * kConceptDims + d];
  return centroids / centroids.norm(2, 1, true);
}

std::vector<float> closeness_to(const at::Tensor& rows, const std::vector<int32_t>& labels, const at::Tensor& centroids) {
  std::vector<float> closeness;
  for (size_t i = 0; i < labels.size(); ++i)
    closeness.push_back(data::scalar_product(rows.const_data_ptr<float>() + static_cast<int64_t>(i) * kConceptDims,
                                             centroids.const_data_ptr<float>() + labels[i] * kConceptDims, kConceptDims));
  return closeness;
}

// 30 % near-copies of points with noise of 1e-3.
void planted_copies(const ProofOptions& options, Findings& findings) {
  const ConceptPoints points(options.seed);
  const at::Tensor originals = points.vectors();
  const int64_t copies = kConceptPoints * 3 / 10;
  std::vector<int64_t> which = data::pick_random(numbers_up_to(kConceptPoints), copies, base::Random(options.seed).for_purpose("copies"));
  at::Tensor near = originals.index_select(0, at::tensor(which, at::kLong)).clone();
  const at::Tensor noise = at::empty_like(near);
  base::Random(options.seed).for_purpose("noise").fill_normal({noise.mutable_data_ptr<float>(), static_cast<size_t>(noise.numel())});
  near += 1e-3 / std::sqrt(static_cast<double>(kConceptDims)) * noise;
  const at::Tensor all = at::empty({kConceptPoints + copies, kConceptDims});
  all.narrow(0, 0, kConceptPoints).copy_(originals);
  all.narrow(0, kConceptPoints, copies).copy_(near / near.norm(2, 1, true));
  const auto rows = data::rows_in_memory(all);
  // Copies are at 1 - 5e-7; the nearest different points of the dense concepts at about 1 - 1e-2.
  const std::vector<int64_t> kept = evaluate::select_documents({.method = "dedup", .seed = options.seed, .clusters = 20, .eps = 1e-5},
                                                               {.ids = numbers_up_to(rows->rows()), .vectors = rows.get()}, nullptr)
                                        .kept;
  const std::set<int64_t> stays(kept.begin(), kept.end()), copied(which.begin(), which.end());
  double removed = 0, lost = 0;
  for (size_t i = 0; i < which.size(); ++i) {
    const int left = stays.contains(which[i]) + stays.contains(kConceptPoints + static_cast<int64_t>(i));
    removed += left == 1;
    lost += left == 0;
  }
  for (int64_t i = 0; i < kConceptPoints; ++i) lost += !copied.contains(i) && !stays.contains(i);
  findings.at_least("30 % planted near-copies: share of the pairs of which just one was removed", 0, removed / static_cast<double>(copies),
                    0.99);
  findings.at_most("likewise: share of the 12,000 points of which neither they nor their copy is left", 0,
                   lost / static_cast<double>(kConceptPoints), 0.01);
}

// A cluster inflated 10 times by copies gets its old quota back.
void inflated_cluster(const ProofOptions& options, Findings& findings) {
  const ConceptPoints points(options.seed);
  const at::Tensor originals = points.vectors();
  constexpr int64_t kInflated = 1;
  std::vector<int64_t> members, concepts = points.training.concepts;
  for (int64_t i = 0; i < kConceptPoints; ++i)
    if (concepts[static_cast<size_t>(i)] == kInflated) members.push_back(i);
  const auto count = static_cast<int64_t>(members.size());
  at::Tensor all = at::empty({kConceptPoints + 9 * count, kConceptDims});
  all.narrow(0, 0, kConceptPoints).copy_(originals);
  const at::Tensor some = originals.index_select(0, at::tensor(members, at::kLong));
  for (int64_t copy = 0; copy < 9; ++copy) {
    at::Tensor noise = at::empty_like(some);
    base::Random(options.seed)
        .for_purpose("inflate")
        .for_index(static_cast<uint64_t>(copy))
        .fill_normal({noise.mutable_data_ptr<float>(), static_cast<size_t>(noise.numel())});
    const at::Tensor near = some + 1e-4 * noise;
    all.narrow(0, kConceptPoints + copy * count, count).copy_(near / near.norm(2, 1, true));
    concepts.insert(concepts.end(), members.size(), kInflated);
  }
  // By the true concepts as clusters, so that only the quota is compared.
  const auto quota_of = [&](const std::vector<int64_t>& rows) {
    std::vector<int32_t> labels;
    for (const int64_t row : rows) labels.push_back(static_cast<int32_t>(concepts[static_cast<size_t>(row)]));
    const at::Tensor chosen = all.index_select(0, at::tensor(rows, at::kLong));
    const at::Tensor centroids = centroids_of(chosen, labels);
    return static_cast<double>(
        data::prune_concepts(rows, labels, closeness_to(chosen, labels, centroids), centroids, {.keep = kTenthOfPoints, .balance = 0})
            .clusters[kInflated]
            .quota);
  };
  const std::vector<int64_t> everything = numbers_up_to(all.size(0));
  const auto rows = data::rows_in_memory(all);
  const std::vector<int64_t> deduplicated =
      evaluate::select_documents({.method = "dedup", .seed = options.seed, .clusters = 20, .eps = 1e-5},
                                 {.ids = everything, .vectors = rows.get()}, nullptr)
          .kept;
  const double before = quota_of(numbers_up_to(kConceptPoints)), after = quota_of(deduplicated);
  findings.at_most("a cluster inflated 10 times by copies: its quota after dedup, off that without copies by", before,
                   std::abs(after - before) / before, 0.2);
}

// min sum (x_j - wanted_j)^2 within bounds and with a given sum, by force: units move between two clusters at a time until no move helps.
// With one equation that is the optimum.
std::vector<double> projection_by_pairs(const std::vector<double>& wanted, const std::vector<int64_t>& lower,
                                        const std::vector<int64_t>& upper, int64_t total) {
  std::vector<double> x(lower.begin(), lower.end());
  double left = static_cast<double>(total) - std::accumulate(x.begin(), x.end(), 0.0);
  for (size_t j = 0; j < x.size(); ++j) {
    const double more = std::min(left, static_cast<double>(upper[j]) - x[j]);
    x[j] += more;
    left -= more;
  }
  double largest = 1;
  for (int sweep = 0; largest > 1e-10 && sweep < 100'000; ++sweep) {
    largest = 0;
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        double move = ((wanted[i] - x[i]) - (wanted[j] - x[j])) / 2;  // from j to i
        move = std::min({move, static_cast<double>(upper[i]) - x[i], x[j] - static_cast<double>(lower[j])});
        move = std::max({move, static_cast<double>(lower[i]) - x[i], x[j] - static_cast<double>(upper[j])});
        x[i] += move;
        x[j] -= move;
        largest = std::max(largest, std::abs(move));
      }
  }
  return x;
}

void quotas(const ProofOptions& options, Findings& findings) {
  double worst = 0, wrong = 0;
  for (uint64_t instance = 0; instance < 200; ++instance) {
    const base::Random random = base::Random(options.seed).for_purpose("quota").for_index(instance);
    const size_t k = 1 + random.below(0, 50);
    std::vector<double> wanted;
    std::vector<int64_t> lower, upper;
    int64_t low_sum = 0, high_sum = 0;
    for (size_t j = 0; j < k; ++j) {
      const base::Random one = random.for_index(j);
      wanted.push_back(one.uniform(0) * 500);
      upper.push_back(static_cast<int64_t>(one.below(1, 400)));
      lower.push_back(std::min<int64_t>(upper.back(), static_cast<int64_t>(one.below(2, 50))));
      low_sum += lower.back();
      high_sum += upper.back();
    }
    const int64_t total = low_sum + static_cast<int64_t>(random.below(1, static_cast<uint64_t>(high_sum - low_sum) + 1));
    const data::Projection found = data::project_onto_total(wanted, lower, upper, total);
    const std::vector<double> expected = projection_by_pairs(wanted, lower, upper, total);
    for (size_t j = 0; j < k; ++j) worst = std::max(worst, std::abs(found.x[j] - expected[j]));
    const std::vector<int64_t> counts = data::round_to_total(found.x, upper, total);
    wrong += std::accumulate(counts.begin(), counts.end(), int64_t{0}) != total;
    for (size_t j = 0; j < k; ++j) wrong += counts[j] < lower[j] || counts[j] > upper[j];
  }
  findings.at_most("200 random quotas: largest distance to an optimum found by force, of one cluster", 0, worst, 1e-7);
  findings.at_most("likewise: sums and bounds that do not hold", 0, wrong, 0);
  // Full balance: every cluster keeps as much as the others, however complex.
  const ConceptPoints points(options.seed);
  const at::Tensor rows = points.vectors();
  std::vector<int32_t> labels;
  for (const int64_t one : points.training.concepts) labels.push_back(static_cast<int32_t>(one));
  const auto smallest = std::ranges::min(sizes_of(labels));
  const at::Tensor centroids = centroids_of(rows, labels);
  double unequal = 0;
  for (const data::ConceptCluster& one : data::prune_concepts(numbers_up_to(kConceptPoints), labels, closeness_to(rows, labels, centroids),
                                                              centroids, {.keep = smallest * kConcepts, .balance = 1})
                                             .clusters)
    unequal += one.quota != smallest;
  findings.at_most("full balance: clusters that do not keep as many as the others", 0, unequal, 0);
}

}  // namespace

void prove_concept_quotas(const ProofOptions& options, Findings& findings) {
  quotas(options, findings);
  planted_copies(options, findings);
  inflated_cluster(options, findings);
}

}  // namespace cairn::study
