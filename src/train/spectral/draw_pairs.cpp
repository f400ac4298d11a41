#include "train/spectral/draw_pairs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace cairn::train {
namespace {

// The time after which each pair arrives in the race: exponential with the rate that is its probability. The first `rank` are drawn.
std::vector<double> arrival_times(model::SpectralSampling how, std::span<const float> values, const base::Random& random) {
  const double all = std::accumulate(values.begin(), values.end(), 0.0), even = 1.0 / static_cast<double>(values.size());
  std::vector<double> times;
  for (size_t i = 0; i < values.size(); ++i) {
    const double by_value = all > 0 ? values[i] / all : even;
    const double p = how == model::SpectralSampling::mixed         ? 0.5 * (even + by_value)
                     : how == model::SpectralSampling::multinomial ? by_value
                                                                   : even;
    const double late = -std::log1p(-random.uniform(i));
    times.push_back(p > 0 ? late / p : std::numeric_limits<double>::infinity());
  }
  return times;
}

}  // namespace

std::vector<int64_t> draw_pairs(model::SpectralSampling how, std::span<const float> values, std::span<const int64_t> ids, int64_t rank,
                                int64_t iteration, const base::Random& random) {
  const auto n = std::ssize(values);
  CAIRN_CHECK(rank <= n && std::ssize(ids) == n, "{} of {} pairs, with {} numbers", rank, n, ids.size());
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const auto first_by = [&](const auto& key) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return key(static_cast<size_t>(a)) < key(static_cast<size_t>(b)); });
  };
  if (how == model::SpectralSampling::top) {
    first_by([&](size_t i) { return -values[i]; });
  } else if (how == model::SpectralSampling::sequential) {
    const int64_t begin = iteration * rank % n;
    first_by([&](size_t i) { return (ids[i] - begin + n) % n; });
  } else {
    const std::vector<double> times = arrival_times(how, values, random);
    first_by([&](size_t i) { return times[i]; });
  }
  order.resize(static_cast<size_t>(rank));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace cairn::train
