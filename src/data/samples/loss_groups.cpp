#include "data/samples/loss_groups.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/Parallel.h>

#include "base/check.h"

namespace cairn::data {
namespace {

constexpr int64_t kExactLossesMost = 1'000'000;
constexpr int64_t kLossBins = 4096;
constexpr double kLossMove = 1e-4;
constexpr int kIterationsMost = 100;

// Losses in ascending order, each with a weight, and the sums of weights and of weighted losses before each.
struct LossPoints {
  std::vector<double> losses, weights_before, sums_before;

  explicit LossPoints(std::vector<double> ascending, const std::vector<double>& weights) : losses(std::move(ascending)) {
    weights_before.push_back(0), sums_before.push_back(0);
    for (size_t i = 0; i < losses.size(); ++i) {
      weights_before.push_back(weights_before.back() + weights[i]);
      sums_before.push_back(sums_before.back() + weights[i] * losses[i]);
    }
  }
};

LossPoints every_loss(std::span<const float> losses) {
  std::vector<double> ascending(losses.begin(), losses.end());
  std::sort(ascending.begin(), ascending.end());
  return LossPoints(std::move(ascending), std::vector<double>(losses.size(), 1));
}

// Bins of equal width, each at its middle. Empty ones are left out.
LossPoints loss_histogram(std::span<const float> losses, double least, double most) {
  const double width = (most - least) / static_cast<double>(kLossBins);
  std::vector<double> counts(static_cast<size_t>(kLossBins));
  for (const float loss : losses)
    ++counts[static_cast<size_t>(std::min<int64_t>(kLossBins - 1, static_cast<int64_t>((static_cast<double>(loss) - least) / width)))];
  std::vector<double> middles, weights;
  for (size_t bin = 0; bin < counts.size(); ++bin) {
    if (counts[bin] == 0) continue;
    middles.push_back(least + (static_cast<double>(bin) + 0.5) * width);
    weights.push_back(counts[bin]);
  }
  return LossPoints(std::move(middles), weights);
}

std::vector<double> quantile_centers(const LossPoints& points, int64_t groups) {
  std::vector<double> centers;
  for (int64_t k = 0; k < groups; ++k) {
    const double before = (static_cast<double>(k) + 0.5) / static_cast<double>(groups) * points.weights_before.back();
    const auto next = std::upper_bound(points.weights_before.begin(), points.weights_before.end(), before) - points.weights_before.begin();
    centers.push_back(points.losses[static_cast<size_t>(std::max<std::ptrdiff_t>(next - 1, 0))]);
  }
  return centers;
}

// A loss belongs to the nearest centre; on the border between two, to the upper one.
std::vector<double> borders_of(const std::vector<double>& centers) {
  std::vector<double> borders;
  for (size_t k = 1; k < centers.size(); ++k) borders.push_back((centers[k - 1] + centers[k]) / 2);
  return borders;
}

// One step of Lloyd's algorithm. Returns how far a centre moved at most.
double move_centers(const LossPoints& points, std::vector<double>& centers) {
  const std::vector<double> borders = borders_of(centers);
  double moved = 0;
  size_t begin = 0;
  for (size_t k = 0; k < centers.size(); ++k) {
    const auto end =
        k == borders.size()
            ? points.losses.size()
            : static_cast<size_t>(std::lower_bound(points.losses.begin(), points.losses.end(), borders[k]) - points.losses.begin());
    const double weight = points.weights_before[end] - points.weights_before[begin];
    if (weight > 0) {
      const double center = (points.sums_before[end] - points.sums_before[begin]) / weight;
      moved = std::max(moved, std::abs(center - centers[k]));
      centers[k] = center;
    }
    begin = end;
  }
  return moved;
}

LossGroups equal_losses(int64_t losses, int64_t groups, double loss) {
  LossGroups found{.centers = std::vector<double>(static_cast<size_t>(groups), loss),
                   .sizes = std::vector<int64_t>(static_cast<size_t>(groups)),
                   .group = std::vector<int32_t>(static_cast<size_t>(losses))};
  for (int64_t i = 0; i < losses; ++i) {
    const int64_t k = i * groups / losses;
    found.group[static_cast<size_t>(i)] = static_cast<int32_t>(k);
    ++found.sizes[static_cast<size_t>(k)];
  }
  return found;
}

}  // namespace

LossGroups group_losses(std::span<const float> losses, int64_t groups) {
  CAIRN_CHECK(!losses.empty() && groups >= 1, "{} groups of {} losses", groups, losses.size());
  const auto [least, most] = std::minmax_element(losses.begin(), losses.end());
  const auto count = static_cast<int64_t>(losses.size());
  if (*least == *most) return equal_losses(count, groups, static_cast<double>(*least));
  const LossPoints points =
      count > kExactLossesMost ? loss_histogram(losses, static_cast<double>(*least), static_cast<double>(*most)) : every_loss(losses);
  LossGroups found{.centers = quantile_centers(points, groups),
                   .sizes = std::vector<int64_t>(static_cast<size_t>(groups)),
                   .group = std::vector<int32_t>(losses.size())};
  while (found.iterations++ < kIterationsMost)
    if (move_centers(points, found.centers) < kLossMove) break;
  const std::vector<double> borders = borders_of(found.centers);
  constexpr int64_t kGrain = 1 << 14;  // losses of a thread
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto loss = static_cast<double>(losses[static_cast<size_t>(i)]);
      found.group[static_cast<size_t>(i)] = static_cast<int32_t>(std::upper_bound(borders.begin(), borders.end(), loss) - borders.begin());
    }
  });
  for (const int32_t group : found.group) ++found.sizes[static_cast<size_t>(group)];
  return found;
}

}  // namespace cairn::data
