#include "sync/islands/pairing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace cairn::sync {

std::vector<int> shuffled(int count, uint64_t seed, int64_t round) {
  const base::Random random = base::Random(seed).for_purpose("pairing").for_index(static_cast<uint64_t>(round));
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (int i = count - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)], order[random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(i) + 1)]);
  return order;
}

std::vector<int> group_of(int island, int count, int size, uint64_t seed, int64_t round) {
  const std::vector<int> order = shuffled(count, seed, round);
  const auto place = static_cast<int>(std::find(order.begin(), order.end(), island) - order.begin());
  const int first = place / size * size;
  std::vector<int> group(order.begin() + first, order.begin() + std::min(count, first + size));
  std::sort(group.begin(), group.end());
  return group;
}

double contraction(double momentum, double pull, int group) {
  // Second moments of deviation e and momentum d: D = E|d|^2, C = E<e, d>, V = E|e|^2, with k of a group's deviation from its own mean.
  const double a = momentum, g = pull, k = static_cast<double>(group - 1) / group;
  using Row = std::array<double, 3>;
  const Row d{a * a, -2 * a * g * k, g * g * k};          // D' from D, C, V
  const Row c{d[0], a + d[1], -g * k + d[2]};             // C' = a C - g k V + D'
  const Row v{d[0], 2 * a + d[1], 1 - 2 * g * k + d[2]};  // V' = V + 2 (a C - g k V) + D'
  std::array<Row, 3> power{d, c, v};
  double log_scale = 0, steps = 1;
  for (int i = 0; i < 14; ++i) {  // squared again and again, so that the largest factor alone is left
    std::array<Row, 3> square{};
    double most = 0;
    for (size_t r = 0; r < 3; ++r)
      for (size_t col = 0; col < 3; ++col) {
        for (size_t j = 0; j < 3; ++j) square[r][col] += power[r][j] * power[j][col];
        most = std::max(most, std::abs(square[r][col]));
      }
    if (most == 0) return 0;
    for (Row& row : square)
      for (double& x : row) x /= most;
    power = square;
    steps *= 2;
    log_scale = 2 * log_scale + std::log(most);
  }
  return std::exp(log_scale / steps);
}

double strongest_pull(double momentum, int group) {
  double low = 0, high = 8;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (contraction(momentum, middle, group) < 1 ? low : high) = middle;
  }
  return low;
}

}  // namespace cairn::sync
