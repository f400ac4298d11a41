// Lengths and costs that tests of the step planners share.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "planner/step_plan/sequence_pool.h"

namespace cairn::planner {

inline std::vector<parallel::PlannedSequence> sequences_of(const std::vector<int64_t>& lengths) {
  std::vector<parallel::PlannedSequence> all;
  for (const int64_t length : lengths) all.push_back({static_cast<int64_t>(all.size()), length});
  return all;
}

// exp(N(ln middle, spread)) + least, at most `most`.
inline std::vector<int64_t> long_tailed(uint64_t seed, int64_t count, double middle, double spread, int64_t least, int64_t most) {
  const base::Random random = base::Random(seed).for_purpose("lengths");
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    const double drawn = std::exp(std::log(middle) + spread * static_cast<double>(random.normal(static_cast<uint64_t>(i))));
    lengths.push_back(std::min(most, static_cast<int64_t>(std::min(drawn, 1e12)) + least));
  }
  return lengths;
}

// ByteScale's sheet: 122 sequences, a few of them thousands of tokens long, on 8 ranks of 512.
inline std::vector<parallel::PlannedSequence> bytescale_batch(uint64_t seed) {
  std::vector<int64_t> lengths = long_tailed(seed, 120, 160, 1.1, 16, 3500);
  lengths.insert(lengths.end(), {4096, 3000});
  return sequences_of(lengths);
}
inline SequencePool bytescale_pool() {
  return {.ranks = 8, .tokens_per_rank = 512, .ranks_per_node = 0,
          .costs = {.quadratic_s = 2.6e-9, .linear_s = 1e-6, .pass_s = 2e-5, .exchange = Exchange::ring, .exchange_bytes = 0, .bandwidth = {}}};
}

// FlexSP's reference: a model of 7 billion parameters on 64 A100, 8 to a node, 6449 tokens to a rank.
inline SequencePool flexsp_reference_pool() {
  return {.ranks = 64,
          .tokens_per_rank = 6449,
          .ranks_per_node = 8,
          .costs = {.quadratic_s = 5.128e-9,
                    .linear_s = 0.18396e-3,
                    .pass_s = 0.62936,
                    .exchange = Exchange::all_to_all,
                    .exchange_bytes = 4.0 * 2 * 32 * 4096 * 2,
                    .bandwidth = {{2, 119.5e9}, {4, 104.1e9}, {8, 96.5e9}, {16, 10.33e9}, {32, 5.94e9}, {64, 4.87e9}}}};
}

}  // namespace cairn::planner
