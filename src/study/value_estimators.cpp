#include "study/value_estimators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace cairn::study {
namespace {

constexpr size_t kWindow = 100;

}  // namespace

std::vector<int64_t> PlayerValues::samples_of(const std::vector<size_t>& which) const {
  std::vector<int64_t> samples;
  for (const size_t player : which) samples.insert(samples.end(), players[player].begin(), players[player].end());
  return samples;
}

std::vector<int64_t> PlayerValues::all() const {
  std::vector<size_t> which(players.size());
  std::iota(which.begin(), which.end(), size_t{0});
  return samples_of(which);
}

double PlayerValues::value(const std::vector<int64_t>& samples) const {
  return samples.empty() || !utility.covers(samples) ? utility.empty() : utility.value(samples);
}

std::vector<size_t> order_of_players(uint64_t seed, int64_t t, size_t players) {
  const base::Random random = base::Random(seed).for_purpose("permutation").for_index(static_cast<uint64_t>(t));
  std::vector<size_t> order(players);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = players; i > 1; --i) std::swap(order[i - 1], order[random.below(i, i)]);
  return order;
}

std::vector<double> permutation_row(const PlayerValues& game, int64_t t) {
  const size_t n = game.players.size();
  std::vector<double> row(n + kRowTail);
  double before = game.utility.empty();
  std::vector<int64_t> samples;
  int64_t near = 0;
  size_t place = 0;
  for (const size_t player : order_of_players(game.seed, t, n)) {
    samples.insert(samples.end(), game.players[player].begin(), game.players[player].end());
    double now = before;
    if (game.utility.covers(samples)) {
      now = game.utility.value(samples);
      ++row[n];
    }
    row[player] = now - before;
    before = now;
    ++place;
    near = game.near >= 0 && std::abs(now - game.full_mean) <= game.near ? near + 1 : 0;
    if (near > game.patience) break;
  }
  row[n + 1] = static_cast<double>(place);
  row[n + 2] = before;
  return row;
}

std::vector<double> subset_values(const PlayerValues& game, int64_t first, int64_t count) {
  std::vector<double> values;
  for (int64_t bits = first; bits < first + count; ++bits) {
    std::vector<size_t> which;
    for (size_t i = 0; i < game.players.size(); ++i)
      if ((bits >> i) & 1) which.push_back(i);
    values.push_back(game.value(game.samples_of(which)));
  }
  return values;
}

std::vector<double> exact_values(const std::vector<double>& of_subsets, size_t players) {
  CAIRN_CHECK(of_subsets.size() == size_t{1} << players, "{} subsets of {} players", of_subsets.size(), players);
  std::vector<double> share(players, 1.0 / static_cast<double>(players));  // 1 / (n C(n - 1, s)) for s = 0 .. n - 1
  for (size_t s = 1; s < players; ++s) share[s] = share[s - 1] * static_cast<double>(s) / static_cast<double>(players - s);
  std::vector<double> values(players);
  for (size_t bits = 0; bits < of_subsets.size(); ++bits)
    for (size_t i = 0; i < players; ++i)
      if (((bits >> i) & 1) == 0)
        values[i] += share[static_cast<size_t>(__builtin_popcountll(bits))] * (of_subsets[bits | (size_t{1} << i)] - of_subsets[bits]);
  return values;
}

RunningValues::RunningValues(size_t players) : sums_(players), squares_(players) {}

void RunningValues::add(const std::vector<double>& row) {
  const size_t n = sums_.size();
  CAIRN_CHECK(row.size() == n + kRowTail, "a row of {} numbers for {} players", row.size(), n);
  for (size_t i = 0; i < n; ++i) {
    sums_[i] += row[i];
    squares_[i] += row[i] * row[i];
  }
  trainings_ += row[n];
  positions_ += row[n + 1];
  ++count_;
  if (last_.size() < kWindow)
    last_.push_back(values());
  else
    last_[static_cast<size_t>(count_) % kWindow] = values();
}

std::vector<double> RunningValues::values() const {
  std::vector<double> means(sums_);
  for (double& one : means) one /= static_cast<double>(std::max<int64_t>(1, count_));
  return means;
}

std::vector<double> RunningValues::errors() const {
  std::vector<double> found(sums_.size(), std::numeric_limits<double>::infinity());
  const auto count = static_cast<double>(count_);
  for (size_t i = 0; count_ > 1 && i < found.size(); ++i)
    found[i] = std::sqrt(std::max(0.0, squares_[i] / count - sums_[i] * sums_[i] / count / count) / (count - 1));
  return found;
}

double RunningValues::change() const {
  if (last_.size() < kWindow) return std::numeric_limits<double>::infinity();
  const std::vector<double> now = values();
  double most = 0;
  for (const std::vector<double>& then : last_) {
    double sum = 0;
    for (size_t i = 0; i < now.size(); ++i) sum += std::abs(then[i] - now[i]) / (std::abs(now[i]) + 1e-12);
    most = std::max(most, sum / static_cast<double>(now.size()));
  }
  return most;
}

}  // namespace cairn::study
