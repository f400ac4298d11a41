// Estimators of the Shapley value of players, each of which is a set of samples.
//
//   exact   phi_i = 1/n sum over S without i of (V(S + i) - V(S)) / C(n - 1, |S|)
//   tmc     phi_i = the mean, over random orders, of V(predecessors + i) - V(predecessors); the rest of an order counts as 0 once V has
//           stayed near V(all) for a while
//   loo     V(all) - V(all without i)
#pragma once
#include <cstdint>
#include <vector>

#include "study/value_utility.h"

namespace cairn::study {

struct PlayerValues {
  std::vector<std::vector<int64_t>> players;  // samples of each
  const Utility& utility;                     // borrowed
  uint64_t seed = 0;
  double near = -1;      // |V - full_mean| that counts as near; below 0: orders never end early
  double full_mean = 0;  // V(all), as the mean over resamples of the validation samples
  int64_t patience = 5;

  std::vector<int64_t> samples_of(const std::vector<size_t>& which) const;
  std::vector<int64_t> all() const;
  // V of some players; of samples that cannot be trained on, V of none.
  double value(const std::vector<int64_t>& samples) const;
};

// The order of the players in iteration t: a function of (seed, t).
std::vector<size_t> order_of_players(uint64_t seed, int64_t t, size_t players);

// One order. The result has a marginal for each player, then: trainings, the position at which it ended, V at its end.
std::vector<double> permutation_row(const PlayerValues& game, int64_t t);
inline constexpr size_t kRowTail = 3;

// V of the subsets with bits [first, first + count) of players.
std::vector<double> subset_values(const PlayerValues& game, int64_t first, int64_t count);
// The exact values from V of all 2^n subsets.
std::vector<double> exact_values(const std::vector<double>& of_subsets, size_t players);

// Sums of rows in their order: means and standard errors.
class RunningValues {
 public:
  explicit RunningValues(size_t players);
  void add(const std::vector<double>& row);  // of permutation_row
  int64_t count() const { return count_; }
  std::vector<double> values() const;
  std::vector<double> errors() const;  // standard errors of the values
  // The largest, over the last 100 rows, mean relative distance of the values then to the values now; infinite before 100 rows.
  double change() const;
  double trainings() const { return trainings_; }
  double position() const { return count_ == 0 ? 0 : positions_ / static_cast<double>(count_); }  // mean number of players before the end

 private:
  std::vector<double> sums_, squares_;
  std::vector<std::vector<double>> last_;  // values after each of the last rows, a ring
  int64_t count_ = 0;
  double trainings_ = 0, positions_ = 0;
};

}  // namespace cairn::study
