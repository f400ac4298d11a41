#include "sync/islands/merge_rule.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/adamw.h"
#include "kernels/aten.h"

namespace cairn::sync {
namespace {

// aminmax finds infinities at either end and propagates NaN.
bool is_finite(const at::Tensor& values) {
  const auto [least, most] = values.aminmax();
  return std::isfinite(least.item<double>()) && std::isfinite(most.item<double>());
}

double norm_of(const at::Tensor& values) { return std::sqrt(kernels::sum_of_squares(values).item<double>()); }

at::Tensor weighted_mean(const std::vector<Contribution>& contributions) {
  double total = 0;
  for (const Contribution& one : contributions) total += one.weight;
  at::Tensor sum;
  // Product and sum are rounded separately: a fused operation would differ between machines.
  for (const Contribution& one : contributions) {
    at::Tensor part = one.weight == contributions.front().weight ? one.values : one.values.mul_(one.weight / contributions.front().weight);
    sum = sum.defined() ? sum.add_(part) : part;
  }
  return sum.mul_(contributions.front().weight / total);
}

void clip_to_median(std::vector<Contribution>& contributions) {
  std::vector<double> norms;
  for (const Contribution& one : contributions) norms.push_back(norm_of(one.values));
  std::vector<double> sorted = norms;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[(sorted.size() - 1) / 2];  // the lower one: half of the islands cannot raise it
  for (size_t i = 0; i < norms.size(); ++i)
    if (norms[i] > median) contributions[i].values.mul_(static_cast<float>(median / norms[i]));
}

// Element by element, the mean without the `cut` lowest and highest.
at::Tensor middle_mean(const std::vector<Contribution>& contributions, int64_t cut) {
  std::vector<at::Tensor> rows;
  for (const Contribution& one : contributions) rows.push_back(one.values);
  const at::Tensor sorted = std::get<0>(at::stack(rows).sort(0));
  const auto count = static_cast<int64_t>(rows.size());
  at::Tensor sum = sorted.select(0, cut).clone();
  for (int64_t i = cut + 1; i < count - cut; ++i) sum.add_(sorted.select(0, i));
  return sum.mul_(1.0 / static_cast<double>(count - 2 * cut));
}

}  // namespace

at::Tensor merge(const MergeRule& rule, std::vector<Contribution>& contributions) {
  std::erase_if(contributions, [](const Contribution& one) {
    return !(one.weight > 0) || !std::isfinite(one.weight) || (one.values.numel() > 0 && !is_finite(one.values));
  });
  if (contributions.empty()) return {};
  const auto count = static_cast<int64_t>(contributions.size());
  if (rule.kind == MergeKind::median) return middle_mean(contributions, (count - 1) / 2);
  if (rule.kind == MergeKind::trim) {
    const auto share = static_cast<int64_t>(static_cast<double>(count) * rule.trim);
    return middle_mean(contributions, count < 3 ? 0 : std::max<int64_t>(1, std::min(share, (count - 1) / 2)));
  }
  if (rule.kind == MergeKind::clip) clip_to_median(contributions);
  return weighted_mean(contributions);
}

}  // namespace cairn::sync
