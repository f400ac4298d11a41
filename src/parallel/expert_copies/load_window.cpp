#include "parallel/expert_copies/load_window.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn::parallel {

LoadWindow::LoadWindow(int layers, int experts, int steps)
    : layers_(static_cast<size_t>(layers)),
      experts_(static_cast<size_t>(experts)),
      steps_(static_cast<size_t>(steps)),
      sums_(layers_ * experts_, 1) {
  CAIRN_CHECK(layers > 0 && experts > 0 && steps > 0, "a window of {} steps over {} layers of {} experts", steps, layers, experts);
}

void LoadWindow::add(std::vector<int64_t> counts) {
  CAIRN_CHECK(counts.size() == sums_.size(), "{} counts for {} layers of {} experts", counts.size(), layers_, experts_);
  for (const int64_t count : counts) CAIRN_CHECK(count >= 0, "a negative count of tokens: {}", count);
  if (history_.empty()) std::fill(sums_.begin(), sums_.end(), 0);
  for (size_t i = 0; i < counts.size(); ++i) sums_[i] += counts[i];
  history_.push_back(std::move(counts));
  if (history_.size() <= steps_) return;
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i] -= history_.front()[i];
  history_.pop_front();
}

std::span<const int64_t> LoadWindow::load(int layer) const {
  CAIRN_CHECK(layer >= 0 && static_cast<size_t>(layer) < layers_, "no layer {} of {}", layer, layers_);
  return std::span(sums_).subspan(static_cast<size_t>(layer) * experts_, experts_);
}

}  // namespace cairn::parallel
