// What a sequence costs on a number of ranks. Both step planners read it; all numbers are measured (fit_pass_costs) or follow from the
// model's sizes.
//
//   compute    t(s) = a s^2 + b s       forward and backward of s tokens on one rank, all layers
//   exchange   x(s, d)                  what one of d ranks sends for s tokens, over its measured bandwidth among d ranks
//   sequence   ring:        max(t(s)/d, x(s, d))      the next keys travel while these are used
//              all_to_all:  t(s)/d + x(s, d)          nothing to compute until they are there
//   unit       c + sum over its sequences             c: what a pass costs whatever it holds
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace cairn::planner {

// How the ranks of a unit see each other's keys, as far as costs go.
//   ring        keys and values pass by all d ranks: a rank sends (d-1)/d of the sequence
//   all_to_all  heads for positions and back (Ulysses): a rank sends 1/d of the sequence, of which 1/d stays
enum class Exchange { ring, all_to_all };

struct SequenceCosts {
  double quadratic_s = 0;  // a: seconds of a pair of tokens
  double linear_s = 0;     // b: seconds of a token
  double pass_s = 0;       // c: seconds of a pass
  Exchange exchange = Exchange::ring;
  double exchange_bytes = 0;             // of a token: forward and backward of all layers
  std::map<int, double> bandwidth = {};  // bytes a second that one rank sends among d ranks, by d; between two entries the lower d's holds

  double compute_s(int64_t length) const;
  // Seconds that one of `degree` ranks sends. 0 for one rank, and where no bandwidth is known: links are then taken for free.
  double exchange_s(int64_t length, int degree) const;
  double sequence_s(int64_t length, int degree) const;
};

// One measured pass: so many tokens of one sequence on one rank.
struct MeasuredPass {
  int64_t length = 0;
  double seconds = 0;
};

// Least squares of c + b s + a s^2 with no negative coefficient, each point weighed by 1/seconds^2: short passes count as much as long
// ones. Refuses fewer than three different lengths.
struct PassFit {
  double quadratic_s = 0, linear_s = 0, pass_s = 0;
  double r_squared = 0;  // of seconds, unweighted
};
PassFit fit_pass_costs(std::span<const MeasuredPass> passes);

}  // namespace cairn::planner
