#include "train/report/rank_times.h"

#include <algorithm>

namespace cairn::train {

void RankTimes::add(std::span<const double> seconds) {
  steps_.emplace_back(seconds.begin(), seconds.end());
  if (steps_.size() > kWindow) steps_.pop_front();
}

std::optional<RankTimes::Slow> RankTimes::slowest() const {
  if (steps_.size() < kWindow || steps_.front().size() < 2) return std::nullopt;
  std::vector<double> means(steps_.front().size());
  for (const std::vector<double>& step : steps_)
    for (size_t rank = 0; rank < means.size(); ++rank) means[rank] += step[rank] / static_cast<double>(steps_.size());
  const auto slowest = std::max_element(means.begin(), means.end());
  std::vector<double> others = means;
  others.erase(others.begin() + (slowest - means.begin()));
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  if (*middle <= 0 || *slowest < (1 + kBehind) * *middle) return std::nullopt;
  return Slow{.rank = static_cast<int>(slowest - means.begin()), .behind = *slowest / *middle - 1};
}

}  // namespace cairn::train
