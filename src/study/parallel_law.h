// The scaling law of parallel streams (ParScale, arXiv:2505.10475): the loss of a model of N parameters that runs in P streams,
//   L(N, P) = E + (A / (N (k ln P + 1)))^alpha,
// fitted to measured losses. P streams act like k ln P + 1 times the parameters.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn::study {

struct LawPoint {
  double parameters = 0;  // N, without embeddings, as this number of streams has them
  double streams = 1;     // P
  double loss = 0;
};

struct ParallelLaw {
  double e = 0, a = 0, k = 0, alpha = 0;
  double loss(double parameters, double streams) const;
};

struct LawFit {
  ParallelLaw law;
  double r_squared = 0;  // of the losses
  double objective = 0;  // sum over points of Huber(ln L - ln L(N, P)), delta 0.001
};

// The law with the least objective, from 300 starts. Refuses fewer than 8 points, losses or sizes that are not positive, and points of one
// number of streams, which do not determine k.
LawFit fit_parallel_law(std::span<const LawPoint> points);

// Lines of parameters, streams and loss, separated by commas, after a line that names the columns: parameters (or N), streams (or P), loss
// (or L), in any order. `file` is for messages.
std::vector<LawPoint> parse_law_points(const std::string& text, const std::string& file);

// The fit with its residuals, and what more streams save in parameters.
std::string to_tables(const LawFit& fit, std::span<const LawPoint> points);
std::string to_json(const LawFit& fit, std::span<const LawPoint> points);

}  // namespace cairn::study
