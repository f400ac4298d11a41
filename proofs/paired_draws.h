#pragma once
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "study/claims.h"

namespace cairn::study {

// A ratio that differs from draw to draw: its mean, and by how much the mean may be off (its standard error).
struct PairedDraws {
  double mean = 0, error = 0;
};

// Of b[i] / a[i], which come from the same draw each.
inline PairedDraws ratio_of(const std::vector<double>& b, const std::vector<double>& a) {
  const auto count = static_cast<double>(a.size());
  PairedDraws draws;
  for (size_t i = 0; i < a.size(); ++i) draws.mean += b[i] / a[i] / count;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += std::pow(b[i] / a[i] - draws.mean, 2);
  draws.error = count > 1 ? std::sqrt(squares / (count - 1) / count) : 0;
  return draws;
}

// The text of a claim, with the standard error. The error widens no bound.
inline std::string with_error(const std::string& claim, const PairedDraws& draws, size_t count) {
  return fmt::format("{} (mean ratio of {} draws, standard error {:.3f})", claim, count, draws.error);
}

// The mean ratio is at most the bound.
inline void at_most_ratio(Findings& findings, const std::string& claim, const std::vector<double>& b, const std::vector<double>& a,
                          double bound) {
  const PairedDraws draws = ratio_of(b, a);
  findings.at_most(with_error(claim, draws, a.size()), 1, draws.mean, bound);
}

// The mean ratio is 1, give or take this.
inline void ratio_near_one(Findings& findings, const std::string& claim, const std::vector<double>& b, const std::vector<double>& a,
                           double within) {
  const PairedDraws draws = ratio_of(b, a);
  findings.at_most(with_error(claim, draws, a.size()) + ": how far from 1", draws.mean, std::abs(draws.mean - 1), within);
}

}  // namespace cairn::study
