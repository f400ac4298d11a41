#pragma once
#include <cmath>
#include <string>
#include <vector>

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

// A bound on the mean ratio is missed where the mean is above it by more than twice its standard error: what chance does to a few draws is
// no verdict on the method.
inline void at_most_ratio(Findings& findings, const std::string& claim, const std::vector<double>& b, const std::vector<double>& a,
                          double bound) {
  const PairedDraws draws = ratio_of(b, a);
  findings.at_most(claim + " (mean ratio of " + std::to_string(a.size()) + " draws, against the bound and twice its standard error)", bound,
                   draws.mean, bound + 2 * draws.error);
}

}  // namespace cairn::study
