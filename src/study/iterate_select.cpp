#include "study/iterate_select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "data/selection/simple_picks.h"

namespace cairn::study {
namespace {

constexpr double kScoreMax = 10;

}  // namespace

std::vector<int64_t> draw_members(const std::string& pick, std::span<const int64_t> among, std::span<const int64_t> ids,
                                  std::span<const double> quality, int64_t count, const base::Random& random) {
  if (!quality.empty() && (pick == "top" || pick == "median")) {
    std::vector<float> here;
    for (const int64_t place : among) here.push_back(static_cast<float>(quality[static_cast<size_t>(place)]));
    std::vector<int64_t> chosen = data::pick_by_score(here, count, pick == "top" ? data::ScoreOrder::highest : data::ScoreOrder::middle);
    for (int64_t& one : chosen) one = among[static_cast<size_t>(one)];
    return chosen;
  }
  std::vector<double> weights;
  for (const int64_t place : among) weights.push_back(quality.empty() ? 1 : quality[static_cast<size_t>(place)]);
  const double most = weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());
  for (double& one : weights)
    if (pick == "softmax") one = std::exp(one - most);
  return data::draw_weighted(among, ids, weights, count, random);
}

std::vector<double> updated_weights(std::span<const double> weights, std::span<const double> scores, bool replace, double floor) {
  const size_t n = weights.size();
  double most = -std::numeric_limits<double>::infinity();
  for (const double one : scores)
    if (!std::isnan(one)) most = std::max(most, std::clamp(one, -kScoreMax, kScoreMax));
  std::vector<double> gains(n);
  double sum = 0, known = 0;
  for (size_t i = 0; i < n; ++i) {
    if (std::isnan(scores[i])) continue;
    gains[i] = std::exp(std::clamp(scores[i], -kScoreMax, kScoreMax) - most);
    sum += gains[i], ++known;
  }
  std::vector<double> updated(n);
  for (size_t i = 0; i < n; ++i)
    updated[i] = (replace ? 1 : weights[i]) * (known == 0 ? 1 : std::isnan(scores[i]) ? sum / known : gains[i]);
  const double total = std::accumulate(updated.begin(), updated.end(), 0.0);
  for (double& one : updated) one = std::max(one / total, floor / static_cast<double>(n));
  const double again = std::accumulate(updated.begin(), updated.end(), 0.0);
  for (double& one : updated) one /= again;
  return updated;
}

}  // namespace cairn::study
