// How many members each cluster gives: whole numbers with an exact sum and bounds.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"

namespace cairn::data {

// minimise sum_j (x_j - wanted_j)^2  subject to  sum_j x_j = total,  lower_j <= x_j <= upper_j.
// The solution is x_j = clamp(wanted_j + lambda, lower_j, upper_j); lambda is found exactly. Needs sum(lower) <= total <= sum(upper).
struct Projection {
  std::vector<double> x;
  double lambda = 0;
};
Projection project_onto_total(std::span<const double> wanted, std::span<const int64_t> lower, std::span<const int64_t> upper,
                              int64_t total);

// Whole numbers: rounded down, then one more for the largest fractions that have room, until the sum is `total`. x lies within the bounds.
std::vector<int64_t> round_to_total(std::span<const double> x, std::span<const int64_t> upper, int64_t total);

// `total` in parts that are in proportion to the weights, where nobody gets more than its size; what a full cluster cannot take goes to the others
// in proportion. total <= sum(sizes), weights >= 0. Fewer than one for each cluster: which of them give one is drawn (systematic sampling),
// so that each gives its share in the mean.
std::vector<int64_t> capped_shares(std::span<const double> weights, std::span<const int64_t> sizes, int64_t total,
                                   const base::Random& random);

}  // namespace cairn::data
