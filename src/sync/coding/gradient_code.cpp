// Gradient coding (Tandon et al. 2017, arXiv:1612.03301).
//
// Random code: worker i has parts i .. i + s (mod n). H is an s x n Gaussian matrix whose columns sum to zero. Row i of B is 1 at column i
// and x at the other s, with
//
//   H[:, i+1..i+s] x = -H[:, i]          so that every row of B is orthogonal to H, and so is the row of ones
//
// The rows of any n - s workers R span that space, therefore a' B_R = 1' has a solution a, and sum of a_i reply_i = sum of all g_j. It is
// found by the singular values of B_R (one-sided Jacobi, fp64), which also say how well it is conditioned. Of many draws of H the one is
// taken that rounds least; none with a set R that is conditioned worse than 1e6.
//
// Repetition code, where s + 1 divides n: groups of s + 1 workers have the same s + 1 parts with coefficients 1. The first live worker of
// each group has weight 1: nothing is rounded.
#include "sync/coding/gradient_code.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace cairn::sync {
namespace {

constexpr uint64_t kDrawsOfFew = 200, kDrawsOfMany = 20;  // of the matrix
// Live sets that are looked at, if there are more: to compare draws, and to check the one that is taken.
constexpr int64_t kSetsCompared = 100, kSetsOfFew = 13000;
constexpr int kFewWorkers = 16;
constexpr double kNegligible = 1e-11;
constexpr int kSweepsMax = 60;

using Rows = std::vector<std::vector<double>>;

double dot(const std::vector<double>& a, const std::vector<double>& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

// Solves a x = b by Gaussian elimination with partial pivoting; empty if it is singular.
std::vector<double> solve_square(Rows a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t c = 0; c < n; ++c) {
    size_t pivot = c;
    for (size_t r = c + 1; r < n; ++r)
      if (std::abs(a[r][c]) > std::abs(a[pivot][c])) pivot = r;
    if (std::abs(a[pivot][c]) < 1e-12) return {};
    std::swap(a[c], a[pivot]);
    std::swap(b[c], b[pivot]);
    for (size_t r = c + 1; r < n; ++r) {
      const double factor = a[r][c] / a[c][c];
      for (size_t k = c; k < n; ++k) a[r][k] -= factor * a[c][k];
      b[r] -= factor * b[c];
    }
  }
  for (size_t c = n; c-- > 0;) {
    for (size_t k = c + 1; k < n; ++k) b[c] -= a[c][k] * b[k];
    b[c] /= a[c][c];
  }
  return b;
}

// One-sided Jacobi: rotates pairs of rows of `a` until all are orthogonal, and `v` (the identity at first) with them.
void orthogonalize_rows(Rows& a, Rows& v) {
  for (int sweep = 0; sweep < kSweepsMax; ++sweep) {
    bool rotated = false;
    for (size_t p = 0; p < a.size(); ++p)
      for (size_t q = p + 1; q < a.size(); ++q) {
        const double pp = dot(a[p], a[p]), qq = dot(a[q], a[q]), pq = dot(a[p], a[q]);
        if (std::abs(pq) <= 1e-15 * std::sqrt(pp * qq)) continue;
        rotated = true;
        const double tau = (qq - pp) / (2 * pq);
        const double t = (tau >= 0 ? 1.0 : -1.0) / (std::abs(tau) + std::sqrt(1 + tau * tau));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (Rows* m : {&a, &v})
          for (size_t k = 0; k < (*m)[p].size(); ++k) {
            const double x = (*m)[p][k], y = (*m)[q][k];
            (*m)[p][k] = c * x - s * y;
            (*m)[q][k] = s * x + c * y;
          }
      }
    if (!rotated) return;
  }
}

// The x of least norm with sum over rows of x_i a_i = ones, and the condition of a at this rank.
Decoding combine_to_ones(Rows a, size_t rank) {
  const size_t rows = a.size();
  Rows v(rows, std::vector<double>(rows));
  for (size_t i = 0; i < rows; ++i) v[i][i] = 1;
  orthogonalize_rows(a, v);
  std::vector<double> squares(rows);
  for (size_t i = 0; i < rows; ++i) squares[i] = dot(a[i], a[i]);
  std::vector<size_t> order(rows);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t x, size_t y) { return squares[x] > squares[y]; });
  const double most = squares[order.front()], least = squares[order[rank - 1]];
  if (!(least > kNegligible * kNegligible * most)) return {.weights = {}, .condition = std::numeric_limits<double>::infinity()};
  Decoding found{.weights = std::vector<double>(rows, 0.0), .condition = std::sqrt(most / least)};
  for (size_t k = 0; k < rank; ++k) {
    const size_t i = order[k];
    const double along = std::accumulate(a[i].begin(), a[i].end(), 0.0) / squares[i];
    for (size_t j = 0; j < rows; ++j) found.weights[j] += along * v[i][j];
  }
  return found;
}

}  // namespace

GradientCode::GradientCode(CodeKind kind, int workers, int stragglers, uint64_t seed, const std::string& key)
    : workers_(workers), stragglers_(stragglers), parts_(static_cast<size_t>(workers)), coefficients_(parts_.size()) {
  CAIRN_CHECK(workers >= 1 && stragglers >= 0, "a code for {} workers, {} of them late", workers, stragglers);
  if (stragglers >= workers)
    base::fail_input("{} = {}: {} workers, and at least one must not be late: use at most {}", key, stragglers, workers, workers - 1);
  const bool divides = workers % (stragglers + 1) == 0;
  if (kind == CodeKind::repetition && !divides)
    base::fail_input("{} = {}: the repetition code needs groups of {} workers, and {} workers cannot be divided so: use code = random", key,
                     stragglers, stragglers + 1, workers);
  repetition_ = kind != CodeKind::random && divides;
  for (int i = 0; i < workers; ++i) {
    const int first = repetition_ ? i / (stragglers + 1) * (stragglers + 1) : i;
    for (int k = 0; k <= stragglers; ++k) parts_[static_cast<size_t>(i)].push_back((first + k) % workers);
    coefficients_[static_cast<size_t>(i)].assign(static_cast<size_t>(stragglers) + 1, 1.0);
  }
  if (repetition_ || stragglers == 0) return;
  choose_draw(seed, key);
}

// Of many draws the one that rounds least, among those whose every live set is conditioned well.
void GradientCode::choose_draw(uint64_t seed, const std::string& key) {
  std::vector<std::pair<double, uint64_t>> draws;
  double best = std::numeric_limits<double>::infinity();
  for (uint64_t attempt = 0; attempt < (workers_ <= kFewWorkers ? kDrawsOfFew : kDrawsOfMany); ++attempt) {
    draw(seed, attempt);
    const double amplification = worst_amplification(seed, kSetsCompared, best);
    best = std::min(best, amplification);
    draws.emplace_back(amplification, attempt);
  }
  std::sort(draws.begin(), draws.end());
  for (const auto& [amplification, attempt] : draws) {
    if (std::isinf(amplification)) break;
    draw(seed, attempt);
    if (!std::isinf(
            worst_amplification(seed, workers_ <= kFewWorkers ? kSetsOfFew : kSetsCompared, std::numeric_limits<double>::infinity())))
      return;
  }
  base::fail_input(
      "{} = {}: no random code for {} workers has a condition below {:.0e} for all live sets: use fewer stragglers, or a number that is "
      "one "
      "below a divisor of {} (repetition code)",
      key, stragglers_, workers_, kConditionMax, workers_);
}

void GradientCode::draw(uint64_t seed, uint64_t attempt) {
  const base::Random random = base::Random(seed).for_purpose("gradient code").for_index(attempt);
  const auto n = static_cast<size_t>(workers_), s = static_cast<size_t>(stragglers_);
  Rows h(s, std::vector<double>(n));
  for (size_t r = 0; r < s; ++r) {
    for (size_t c = 0; c + 1 < n; ++c) h[r][c] = static_cast<double>(random.normal(r * n + c));
    h[r][n - 1] = -std::accumulate(h[r].begin(), h[r].end() - 1, 0.0);
  }
  for (size_t i = 0; i < n; ++i) {
    Rows a(s, std::vector<double>(s));
    std::vector<double> b(s);
    for (size_t r = 0; r < s; ++r) {
      for (size_t k = 0; k < s; ++k) a[r][k] = h[r][(i + 1 + k) % n];
      b[r] = -h[r][i];
    }
    const std::vector<double> x = solve_square(std::move(a), std::move(b));
    coefficients_[i].assign(s + 1, x.empty() ? 0.0 : 1.0);  // singular: a row of zeros, so that it is drawn again
    for (size_t k = 0; k < x.size(); ++k) coefficients_[i][k + 1] = x[k];
  }
}

// How often a rounding error of the replies may enter the sum: sum over live i of |a_i| sum over k of |b_ik|, per part; over all sets of
// n - s workers, or `most` random ones. Infinite where a set is conditioned badly, and as soon as it is above `bound`.
double GradientCode::worst_amplification(uint64_t seed, int64_t most, double bound) {
  int64_t sets = 1;
  for (int k = 0; k < stragglers_ && sets <= kSetsOfFew; ++k) sets = sets * (workers_ - k) / (k + 1);
  all_sets_seen_ = sets <= most;
  double worst = 0;
  std::vector<char> live(static_cast<size_t>(workers_), 1);
  std::fill(live.begin(), live.begin() + stragglers_, 0);
  const base::Random random = base::Random(seed).for_purpose("live sets");
  for (int64_t i = 0; i < std::min(sets, most); ++i) {
    const Decoding found = solve(live);
    if (!(found.condition < kConditionMax)) return std::numeric_limits<double>::infinity();
    double sum = 0;
    for (size_t w = 0; w < live.size(); ++w)
      for (const double b : coefficients_[w]) sum += std::abs(found.weights[w] * b) / workers_;
    worst = std::max(worst, sum);
    if (worst > bound) return std::numeric_limits<double>::infinity();
    if (all_sets_seen_) {
      std::next_permutation(live.begin(), live.end());
      continue;
    }
    const base::Random own = random.for_index(static_cast<uint64_t>(i));
    for (size_t k = live.size(); k > 1; --k) std::swap(live[k - 1], live[own.below(k, k)]);
  }
  return worst;
}

Decoding GradientCode::solve(const std::vector<char>& live) const {
  Rows rows;
  for (size_t i = 0; i < live.size(); ++i) {
    if (!live[i]) continue;
    rows.emplace_back(live.size(), 0.0);
    for (size_t k = 0; k < parts_[i].size(); ++k) rows.back()[static_cast<size_t>(parts_[i][k])] = coefficients_[i][k];
  }
  const auto needed = static_cast<size_t>(workers_ - stragglers_);
  if (rows.size() < needed) return {};
  Decoding found = combine_to_ones(std::move(rows), needed);
  if (found.weights.empty()) return found;
  std::vector<double> all(live.size(), 0.0);
  size_t next = 0;
  for (size_t i = 0; i < live.size(); ++i)
    if (live[i]) all[i] = found.weights[next++];
  found.weights = std::move(all);
  return found;
}

Decoding GradientCode::decode(const std::vector<char>& live) const {
  CAIRN_CHECK(live.size() == parts_.size(), "{} of {} workers", live.size(), parts_.size());
  if (!repetition_ && stragglers_ > 0) {
    Decoding found = solve(live);
    if (found.condition >= kConditionMax) found.weights.clear();  // a set that was not looked at before: one more reply mends it
    return found;
  }
  Decoding found{.weights = std::vector<double>(live.size(), 0.0)};
  const auto group = static_cast<size_t>(stragglers_) + 1;
  for (size_t first = 0; first < live.size(); first += group) {
    const auto end = live.begin() + static_cast<std::ptrdiff_t>(first + group);
    const auto one = std::find_if(live.begin() + static_cast<std::ptrdiff_t>(first), end, [](char is) { return is != 0; });
    if (one == end) return {};
    found.weights[static_cast<size_t>(one - live.begin())] = 1;
  }
  return found;
}

bool GradientCode::decodes(const std::vector<char>& live) const {
  if (repetition_ || stragglers_ == 0 || !all_sets_seen_) return !decode(live).weights.empty();
  return std::count_if(live.begin(), live.end(), [](char is) { return is != 0; }) >= workers_ - stragglers_;
}

}  // namespace cairn::sync
