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

// How many losses lie below a border, and their sum.
struct LossesBelow {
  double count = 0, sum = 0;
};

// Losses in ascending order, or a histogram of them: bins of equal width, in each of which losses are spread evenly.
class LossPoints {
 public:
  static LossPoints of_each(std::span<const float> losses) {
    LossPoints points;
    points.values_.assign(losses.begin(), losses.end());
    std::sort(points.values_.begin(), points.values_.end());
    for (const double value : points.values_) points.add(1, value);
    return points;
  }

  static LossPoints of_bins(std::span<const float> losses, double least, double most) {
    LossPoints points;
    points.least_ = least;
    points.width_ = (most - least) / static_cast<double>(kLossBins);
    std::vector<double> counts(static_cast<size_t>(kLossBins));
    for (const float loss : losses)
      ++counts[static_cast<size_t>(
          std::min<int64_t>(kLossBins - 1, static_cast<int64_t>((static_cast<double>(loss) - least) / points.width_)))];
    for (size_t bin = 0; bin < counts.size(); ++bin) points.add(counts[bin], least + (static_cast<double>(bin) + 0.5) * points.width_);
    return points;
  }

  LossesBelow all() const { return before_.back(); }

  LossesBelow below(double border) const {
    if (width_ == 0) return before_[static_cast<size_t>(std::lower_bound(values_.begin(), values_.end(), border) - values_.begin())];
    const double bins = std::clamp((border - least_) / width_, 0.0, static_cast<double>(kLossBins));
    const auto bin = static_cast<size_t>(bins);
    if (bin == static_cast<size_t>(kLossBins)) return all();
    const double part = bins - static_cast<double>(bin), count = part * (before_[bin + 1].count - before_[bin].count);
    return {before_[bin].count + count, before_[bin].sum + count * (least_ + (static_cast<double>(bin) + part / 2) * width_)};
  }

  // The loss below which this many lie.
  double quantile(double count) const {
    if (width_ == 0) {
      const double place = std::clamp(count - 0.5, 0.0, static_cast<double>(values_.size() - 1));
      const auto lower = static_cast<size_t>(place), upper = std::min(lower + 1, values_.size() - 1);
      return values_[lower] + (place - static_cast<double>(lower)) * (values_[upper] - values_[lower]);
    }
    const auto next = std::lower_bound(before_.begin() + 1, before_.end() - 1, count,
                                       [](const LossesBelow& one, double wanted) { return one.count < wanted; });
    const double in_bin = next->count - std::prev(next)->count;
    const double part = in_bin > 0 ? (count - std::prev(next)->count) / in_bin : 0;
    return least_ + (static_cast<double>(next - before_.begin() - 1) + part) * width_;
  }

 private:
  void add(double count, double value) { before_.push_back({before_.back().count + count, before_.back().sum + count * value}); }

  std::vector<double> values_ = {};     // ascending; none of a histogram
  double least_ = 0, width_ = 0;        // of a histogram
  std::vector<LossesBelow> before_{1};  // each loss or bin, and the end
};

std::vector<double> quantile_centers(const LossPoints& points, int64_t groups) {
  std::vector<double> centers;
  for (int64_t k = 0; k < groups; ++k)
    centers.push_back(points.quantile((static_cast<double>(k) + 0.5) / static_cast<double>(groups) * points.all().count));
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
  LossesBelow begin;
  for (size_t k = 0; k < centers.size(); ++k) {
    const LossesBelow end = k == borders.size() ? points.all() : points.below(borders[k]);
    if (end.count > begin.count) {
      const double center = (end.sum - begin.sum) / (end.count - begin.count);
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
  const LossPoints points = count > kExactLossesMost ? LossPoints::of_bins(losses, static_cast<double>(*least), static_cast<double>(*most))
                                                     : LossPoints::of_each(losses);
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
