#include "study/lifelong_select.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::study {
namespace {

constexpr int kEntropyBins = 50, kCoverageBins = 50;
constexpr double kEntropyRange = 4, kTail = 0.05;
constexpr int64_t kPoolRowsAtOnce = 1024;

std::vector<size_t> ascending(std::span<const double> scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  return order;
}

std::vector<int64_t> places(const std::vector<size_t>& order, size_t first, size_t count) {
  std::vector<int64_t> chosen(order.begin() + static_cast<int64_t>(first), order.begin() + static_cast<int64_t>(first + count));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

std::vector<int64_t> water_filling(std::span<const int64_t> sizes, int64_t budget) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sizes[a] < sizes[b]; });
  std::vector<int64_t> taken(sizes.size());
  int64_t left = std::min(budget, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  for (size_t i = 0; i < order.size(); ++i) {
    taken[order[i]] = std::min(sizes[order[i]], left / static_cast<int64_t>(order.size() - i));
    left -= taken[order[i]];
  }
  for (size_t i = order.size(); left > 0; i = i == 0 ? order.size() : i)  // one by one, the largest first
    if (const size_t at = order[--i]; taken[at] < sizes[at]) ++taken[at], --left;
  return taken;
}

double score_entropy(std::span<const double> scores) {
  const auto count = static_cast<double>(scores.size());
  const double mean = std::accumulate(scores.begin(), scores.end(), 0.0) / std::max(1.0, count);
  double squares = 0;
  for (const double one : scores) squares += (one - mean) * (one - mean);
  const double deviation = std::sqrt(squares / std::max(1.0, count));
  if (!(deviation > 1e-12 * std::max(1.0, std::abs(mean)))) return 0;
  std::vector<double> bins(kEntropyBins);
  for (const double one : scores) {
    const double z = ((one - mean) / deviation + kEntropyRange) / (2 * kEntropyRange) * kEntropyBins;
    bins[static_cast<size_t>(std::clamp(z, 0.0, kEntropyBins - 1.0))] += 1 / count;
  }
  double entropy = 0;
  for (const double p : bins)
    if (p > 0) entropy -= p * std::log2(p);
  return entropy;
}

std::vector<int64_t> choose_evenly(int64_t count, int64_t budget, const base::Random& random) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), int64_t{0});
  const auto wanted = static_cast<size_t>(std::min(count, budget));
  for (size_t i = 0; i < wanted; ++i) std::swap(all[i], all[i + random.below(i, all.size() - i)]);
  all.resize(wanted);
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<double> image_grounding(std::span<const double> loss_without, std::span<const double> loss_with) {
  CAIRN_CHECK(loss_without.size() == loss_with.size(), "losses of {} samples without images, of {} with", loss_without.size(),
              loss_with.size());
  std::vector<double> grounding;
  for (size_t i = 0; i < loss_with.size(); ++i) grounding.push_back(std::exp(loss_without[i] - loss_with[i]));
  return grounding;
}

std::vector<int64_t> choose_across(std::span<const double> scores, int64_t budget, const base::Random& random) {
  const auto count = static_cast<int64_t>(scores.size());
  if (budget >= count) return choose_evenly(count, count, random);
  const std::vector<size_t> order = ascending(scores);
  const auto tail = static_cast<size_t>(kTail * static_cast<double>(count));
  const double low = scores[order[tail]], high = scores[order[order.size() - 1 - tail]];
  std::vector<std::vector<int64_t>> bins(kCoverageBins);
  std::vector<int64_t> aside, sizes, chosen;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i < tail || i + tail >= order.size()) {
      aside.push_back(static_cast<int64_t>(order[i]));
      continue;
    }
    const double at = high > low ? (scores[order[i]] - low) / (high - low) * kCoverageBins : 0;
    bins[static_cast<size_t>(std::clamp(at, 0.0, kCoverageBins - 1.0))].push_back(static_cast<int64_t>(order[i]));
  }
  for (const auto& bin : bins) sizes.push_back(static_cast<int64_t>(bin.size()));
  const std::vector<int64_t> quotas = water_filling(sizes, budget);
  for (size_t b = 0; b < bins.size(); ++b)
    for (const int64_t place : choose_evenly(sizes[b], quotas[b], random.for_index(b)))
      chosen.push_back(bins[b][static_cast<size_t>(place)]);
  for (const int64_t place :
       choose_evenly(static_cast<int64_t>(aside.size()), budget - static_cast<int64_t>(chosen.size()), random.for_purpose("aside")))
    chosen.push_back(aside[static_cast<size_t>(place)]);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::vector<int64_t> choose_within(const std::string& how, std::span<const double> scores, int64_t budget, const base::Random& random) {
  const auto wanted = static_cast<size_t>(std::min<int64_t>(budget, static_cast<int64_t>(scores.size())));
  if (how == "random") return choose_evenly(static_cast<int64_t>(scores.size()), budget, random);
  if (how == "min") return places(ascending(scores), 0, wanted);
  if (how == "mid") return places(ascending(scores), (scores.size() - wanted) / 2, wanted);
  return choose_across(scores, budget, random);
}

std::vector<float> nearest_earlier(const at::Tensor& rows) {
  const int64_t count = rows.size(0);
  std::vector<float> nearest(static_cast<size_t>(count), -2.0F);
  for (int64_t first = 0; first < count; first += kPoolRowsAtOnce) {
    const int64_t some = std::min(kPoolRowsAtOnce, count - first);
    const at::Tensor products = at::matmul(rows.narrow(0, first, some), rows.narrow(0, 0, first + some).t()).contiguous();
    const float* const at = products.const_data_ptr<float>();
    for (int64_t i = 0; i < some; ++i)
      for (int64_t j = 0; j < first + i; ++j)
        nearest[static_cast<size_t>(first + i)] = std::max(nearest[static_cast<size_t>(first + i)], at[i * (first + some) + j]);
  }
  return nearest;
}

std::vector<int64_t> least_similar(const at::Tensor& rows, std::span<const int32_t> labels, int64_t clusters, int64_t cap) {
  std::vector<std::vector<int64_t>> members(static_cast<size_t>(clusters));
  for (size_t i = 0; i < labels.size(); ++i) members[static_cast<size_t>(labels[i])].push_back(static_cast<int64_t>(i));
  std::vector<int64_t> sizes, kept;
  for (const auto& one : members) sizes.push_back(static_cast<int64_t>(one.size()));
  const std::vector<int64_t> quotas = water_filling(sizes, cap);
  const at::Tensor unit = rows.to(at::kFloat) / rows.to(at::kFloat).norm(2, 1, /*keepdim=*/true).clamp_min(1e-30);
  for (size_t c = 0; c < members.size(); ++c) {
    if (members[c].empty()) continue;
    at::Tensor which = at::empty({sizes[c]}, at::kLong);
    std::copy(members[c].begin(), members[c].end(), which.data_ptr<int64_t>());
    const std::vector<float> nearest = nearest_earlier(unit.index_select(0, which));
    std::vector<double> similarity(nearest.begin(), nearest.end());
    for (const int64_t place : places(ascending(similarity), 0, static_cast<size_t>(quotas[c])))
      kept.push_back(members[c][static_cast<size_t>(place)]);
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

size_t elbow(std::span<const int64_t> clusters, std::span<const double> inertia) {
  CAIRN_CHECK(clusters.size() == inertia.size() && !clusters.empty(), "{} inertias of {} clusterings", inertia.size(), clusters.size());
  const auto across = static_cast<double>(clusters.back() - clusters.front());
  const double down = inertia.front() - inertia.back();
  size_t best = 0;
  double most = -1;
  for (size_t i = 0; i < clusters.size() && across > 0 && down > 0; ++i) {
    const double below = (inertia.front() - inertia[i]) / down - static_cast<double>(clusters[i] - clusters.front()) / across;
    if (below > most) most = below, best = i;
  }
  return best;
}

}  // namespace cairn::study
