// The choices of a selection in rounds, as functions of numbers alone.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"

namespace cairn::study {

// `count` of the positions `among`, without replacement: in proportion to the quality (weighted), to its exponential (softmax), the highest
// (top) or the middle ones (median). Empty quality: all the same. Random numbers belong to `ids`. Ascending.
std::vector<int64_t> draw_members(const std::string& pick, std::span<const int64_t> among, std::span<const int64_t> ids,
                                  std::span<const double> quality, int64_t count, const base::Random& random);

// New weights of clusters from the mean scores of their samples (NaN: none was scored, which counts as the mean of the others): w_j g_j
// with g = exp(s - max s), s clipped to [-10, 10], normalised; no weight below floor / clusters. `replace`: g_j alone.
std::vector<double> updated_weights(std::span<const double> weights, std::span<const double> scores, bool replace, double floor);

}  // namespace cairn::study
