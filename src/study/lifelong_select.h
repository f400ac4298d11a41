// The choices of lifelong training, as functions of numbers alone: the same on every rank.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/random.h"

namespace cairn::study {

// Shares a budget out as evenly as sizes allow: the smallest part first, each takes at most an even share of what is left. The sum is the
// budget, or the sum of sizes if that is less.
std::vector<int64_t> water_filling(std::span<const int64_t> sizes, int64_t budget);

// The entropy, in bits, of standardised scores over 50 equal bins of [-4, 4]; 0 for equal scores. Scores outside count in the last bins.
double score_entropy(std::span<const double> scores);

// Image grounding of each sample, exp(loss without its image - loss with it): above 1 where the image helps.
std::vector<double> image_grounding(std::span<const double> loss_without, std::span<const double> loss_with);

// Coverage-centric choice of exactly `budget` places of `scores` (or all, if there are fewer): the lowest and highest 5 % are set aside,
// the range of the others is cut into 50 bins of equal width, which share the budget by water-filling; inside a bin places are drawn
// evenly. If that is too few, some of those set aside are drawn. Ascending.
std::vector<int64_t> choose_across(std::span<const double> scores, int64_t budget, const base::Random& random);
// Other ways: "ccs" (the above), "min", "mid" (around the median), "random".
std::vector<int64_t> choose_within(const std::string& how, std::span<const double> scores, int64_t budget, const base::Random& random);
// `budget` of `count` places, evenly; ascending.
std::vector<int64_t> choose_evenly(int64_t count, int64_t budget, const base::Random& random);

// For each row, its largest scalar product with an earlier one; -2 for the first. Rows of unit length.
std::vector<float> nearest_earlier(const at::Tensor& rows);

// Which rows of a pool survive: clusters share `cap` by water-filling, and each keeps the rows that are least like an earlier one.
// Ascending.
std::vector<int64_t> least_similar(const at::Tensor& rows, std::span<const int32_t> labels, int64_t clusters, int64_t cap);

// The number of clusters at the elbow: the point of (k, inertia) that is farthest below the line from the first to the last.
size_t elbow(std::span<const int64_t> clusters, std::span<const double> inertia);

}  // namespace cairn::study
