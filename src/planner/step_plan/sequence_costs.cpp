#include "planner/step_plan/sequence_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "base/check.h"

namespace cairn::planner {
namespace {

using Three = std::array<double, 3>;  // of 1, s, s^2

// Solves the normal equations of the chosen columns by Gauss elimination; columns that are not chosen get 0.
Three solve(std::span<const MeasuredPass> passes, const std::array<bool, 3>& chosen, double scale) {
  std::array<std::array<double, 4>, 3> m{};
  for (const MeasuredPass& pass : passes) {
    const double s = static_cast<double>(pass.length) / scale, weight = 1 / (pass.seconds * pass.seconds);
    const Three x{1, s, s * s};
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 3; ++j) m[i][j] += weight * x[i] * x[j];
      m[i][3] += weight * x[i] * pass.seconds;
    }
  }
  for (size_t i = 0; i < 3; ++i)
    if (!chosen[i]) {
      for (size_t j = 0; j < 3; ++j) m[i][j] = m[j][i] = 0;
      m[i][i] = 1, m[i][3] = 0;
    }
  for (size_t i = 0; i < 3; ++i) {
    size_t pivot = i;
    for (size_t k = i + 1; k < 3; ++k)
      if (std::abs(m[k][i]) > std::abs(m[pivot][i])) pivot = k;
    std::swap(m[i], m[pivot]);
    for (size_t k = 0; k < 3; ++k) {
      if (k == i || m[i][i] == 0) continue;
      const double factor = m[k][i] / m[i][i];
      for (size_t j = i; j < 4; ++j) m[k][j] -= factor * m[i][j];
    }
  }
  Three found{};
  for (size_t i = 0; i < 3; ++i) found[i] = m[i][i] == 0 ? 0 : m[i][3] / m[i][i];
  return {found[0], found[1] / scale, found[2] / (scale * scale)};
}

double value(const Three& of, int64_t length) {
  const auto s = static_cast<double>(length);
  return of[0] + of[1] * s + of[2] * s * s;
}

}  // namespace

double SequenceCosts::compute_s(int64_t length) const {
  const auto s = static_cast<double>(length);
  return quadratic_s * s * s + linear_s * s;
}

double SequenceCosts::exchange_s(int64_t length, int degree) const {
  if (degree <= 1 || bandwidth.empty()) return 0;
  auto at = bandwidth.upper_bound(degree);
  if (at != bandwidth.begin()) --at;
  const double d = degree, tokens = static_cast<double>(length) * (exchange == Exchange::ring ? (d - 1) / d : 1 / d);
  return tokens * exchange_bytes / at->second;
}

double SequenceCosts::sequence_s(int64_t length, int degree) const {
  const double compute = compute_s(length) / degree, sent = exchange_s(length, degree);
  return exchange == Exchange::ring ? std::max(compute, sent) : compute + sent;
}

PassFit fit_pass_costs(std::span<const MeasuredPass> passes) {
  std::set<int64_t> lengths;
  int64_t longest = 1;
  for (const MeasuredPass& pass : passes) {
    CAIRN_CHECK(pass.length >= 1 && pass.seconds > 0, "a pass of {} tokens in {} s", pass.length, pass.seconds);
    lengths.insert(pass.length);
    longest = std::max(longest, pass.length);
  }
  if (lengths.size() < 3) base::fail_input("costs of sequences from {} different lengths: measure at least 3", lengths.size());
  // Of the fits whose coefficients are not negative, the one with the least error: there are three coefficients, so all are tried.
  Three best{};
  double least = -1;
  for (int mask = 1; mask < 8; ++mask) {
    const std::array<bool, 3> chosen{(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
    const Three found = solve(passes, chosen, static_cast<double>(longest));
    if (std::any_of(found.begin(), found.end(), [](double one) { return one < 0 || !std::isfinite(one); })) continue;
    double error = 0;
    for (const MeasuredPass& pass : passes) error += std::pow(value(found, pass.length) / pass.seconds - 1, 2);
    if (least < 0 || error < least) best = found, least = error;
  }
  double mean = 0, spread = 0, rest = 0;
  for (const MeasuredPass& pass : passes) mean += pass.seconds / static_cast<double>(passes.size());
  for (const MeasuredPass& pass : passes) {
    spread += std::pow(pass.seconds - mean, 2);
    rest += std::pow(pass.seconds - value(best, pass.length), 2);
  }
  return {.quadratic_s = best[2], .linear_s = best[1], .pass_s = best[0], .r_squared = spread > 0 ? 1 - rest / spread : 1};
}

}  // namespace cairn::planner
