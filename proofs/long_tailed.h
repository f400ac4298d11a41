// Batches of sequences with a long tail of lengths.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "parallel/step_plan/step_plan.h"

namespace cairn::study {

// Lengths exp(N(ln middle, spread)) + least, at most `most`, in order of place.
struct LongTail {
  int64_t count = 0;
  double middle = 1, spread = 1;
  int64_t least = 0, most = 0;
};

inline std::vector<int64_t> draw_lengths(const LongTail& tail, const base::Random& random) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < tail.count; ++i) {
    const double drawn = std::exp(std::log(tail.middle) + tail.spread * static_cast<double>(random.normal(static_cast<uint64_t>(i))));
    lengths.push_back(std::min(tail.most, static_cast<int64_t>(std::min(drawn, 1e12)) + tail.least));
  }
  return lengths;
}

inline std::vector<parallel::PlannedSequence> planned_sequences(const std::vector<int64_t>& lengths) {
  std::vector<parallel::PlannedSequence> all;
  for (const int64_t length : lengths) all.push_back({static_cast<int64_t>(all.size()), length});
  return all;
}

}  // namespace cairn::study
