#include "data/selection/quota.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace cairn::data {
namespace {

int64_t sum_of(std::span<const int64_t> numbers) { return std::accumulate(numbers.begin(), numbers.end(), int64_t{0}); }

// Real shares in proportion to the weights, at most the sizes.
std::vector<double> fill_up(std::span<const double> weights, std::span<const int64_t> sizes, int64_t total) {
  const size_t k = weights.size();
  std::vector<double> shares(k, 0);
  std::vector<bool> full(k, false);
  double left = static_cast<double>(total);
  for (bool changed = true; changed && left > 0;) {
    changed = false;
    double weight = 0;
    for (size_t j = 0; j < k; ++j) weight += full[j] ? 0 : weights[j];
    const bool equal = weight <= 0;  // only clusters of weight 0 are left: by their size
    if (equal)
      for (size_t j = 0; j < k; ++j) weight += full[j] ? 0 : static_cast<double>(sizes[j]);
    if (weight <= 0) break;
    const double each = left / weight;
    for (size_t j = 0; j < k; ++j) {
      if (full[j]) continue;
      const auto size = static_cast<double>(sizes[j]);
      shares[j] = each * (equal ? size : weights[j]);
      if (shares[j] < size) continue;
      shares[j] = size;
      full[j] = changed = true;
      left -= size;
    }
  }
  return shares;
}

// Whole numbers whose mean over `start` in [0, 1) is x.
std::vector<int64_t> systematic(std::span<const double> x, std::span<const int64_t> upper, int64_t total, double start) {
  std::vector<int64_t> counts(x.size(), 0);
  double until = 0;
  int64_t given = 0;
  for (size_t j = 0; j < x.size(); ++j) {
    until += x[j];
    while (given < total && static_cast<double>(given) + start < until && counts[j] < upper[j]) ++counts[j], ++given;
  }
  for (size_t j = 0; given < total; j = (j + 1) % x.size())  // what rounding of the sum left over
    if (counts[j] < upper[j]) ++counts[j], ++given;
  return counts;
}

}  // namespace

Projection project_onto_total(std::span<const double> wanted, std::span<const int64_t> lower, std::span<const int64_t> upper,
                              int64_t total) {
  CAIRN_CHECK(sum_of(lower) <= total && total <= sum_of(upper), "a total of {} between {} and {}", total, sum_of(lower), sum_of(upper));
  // S(lambda) = sum of clamp(wanted + lambda, lower, upper) begins at sum(lower); each cluster adds 1 to its slope from its first
  // breakpoint to its second.
  std::vector<std::pair<double, int>> breaks;
  for (size_t j = 0; j < wanted.size(); ++j) {
    breaks.emplace_back(static_cast<double>(lower[j]) - wanted[j], 1);
    breaks.emplace_back(static_cast<double>(upper[j]) - wanted[j], -1);
  }
  std::ranges::sort(breaks);
  auto sum = static_cast<double>(sum_of(lower));
  const auto goal = static_cast<double>(total);
  double lambda = breaks.empty() ? 0 : breaks.front().first;
  int slope = 0;
  for (const auto& [at, change] : breaks) {
    const double next = sum + slope * (at - lambda);
    if (slope > 0 && next >= goal) break;
    sum = next;
    lambda = at;
    slope += change;
  }
  if (slope > 0) lambda += (goal - sum) / slope;
  Projection found{.x = {}, .lambda = lambda};
  for (size_t j = 0; j < wanted.size(); ++j)
    found.x.push_back(std::clamp(wanted[j] + lambda, static_cast<double>(lower[j]), static_cast<double>(upper[j])));
  return found;
}

std::vector<int64_t> round_to_total(std::span<const double> x, std::span<const int64_t> upper, int64_t total) {
  constexpr double kNoise = 1e-9;  // of sums in double precision
  std::vector<int64_t> counts;
  std::vector<std::pair<double, size_t>> fractions;
  for (size_t j = 0; j < x.size(); ++j) {
    counts.push_back(static_cast<int64_t>(std::floor(x[j] + kNoise)));
    fractions.emplace_back(x[j] - static_cast<double>(counts[j]), j);
  }
  std::ranges::stable_sort(fractions, [](const auto& a, const auto& b) { return a.first > b.first; });
  int64_t missing = total - sum_of(counts);
  for (bool gave = true; missing > 0 && gave;) {
    gave = false;
    for (const auto& [fraction, j] : fractions) {
      if (missing == 0 || counts[j] >= upper[j]) continue;
      ++counts[j];
      --missing;
      gave = true;
    }
  }
  CAIRN_CHECK(missing == 0, "{} of {} are left over", missing, total);
  return counts;
}

std::vector<int64_t> capped_shares(std::span<const double> weights, std::span<const int64_t> sizes, int64_t total,
                                   const base::Random& random) {
  CAIRN_CHECK(weights.size() == sizes.size() && total <= sum_of(sizes), "{} of {} in {} clusters", total, sum_of(sizes), sizes.size());
  const std::vector<double> shares = fill_up(weights, sizes, total);
  if (total < static_cast<int64_t>(sizes.size())) return systematic(shares, sizes, total, random.for_purpose("quota").uniform(0));
  return round_to_total(shares, sizes, total);
}

}  // namespace cairn::data
