// Ridge-logistic regression. With two classes one vector w, p = 1 / (1 + exp(-x w)), x with a 1 at its end:
//
//   minimise  sum_i loss(x_i w, y_i) + ridge/2 |w|^2         (the offset counts 1e-4 times in |w|^2)
//   Newton:   w <- w - t H^-1 g,   g = X^T (p - y) + ridge w,   H = X^T diag(p (1 - p)) X + ridge
//
// t is halved until the objective falls. The objective is strictly convex, so the result depends on nothing but the samples. With more
// classes there is a vector for each, and H has a block for each pair.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "study/value_utility.h"

namespace cairn::study {
namespace {

constexpr int kNewtonSteps = 100, kHalvings = 40;
constexpr double kGradientMax = 1e-10, kOffsetRidge = 1e-4;
constexpr int64_t kUnknownsMax = 2000;

// Solves the symmetric positive definite system m x = b in place (Cholesky); x overwrites b.
void solve_in_place(std::vector<double>& m, std::vector<double>& b) {
  const size_t n = b.size();
  for (size_t j = 0; j < n; ++j) {
    double pivot = m[j * n + j];
    for (size_t k = 0; k < j; ++k) pivot -= m[j * n + k] * m[j * n + k];
    pivot = std::sqrt(std::max(pivot, 1e-300));
    m[j * n + j] = pivot;
    for (size_t i = j + 1; i < n; ++i) {
      double sum = m[i * n + j];
      for (size_t k = 0; k < j; ++k) sum -= m[i * n + k] * m[j * n + k];
      m[i * n + j] = sum / pivot;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= m[i * n + k] * b[k];
    b[i] /= m[i * n + i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= m[k * n + i] * b[k];
    b[i] /= m[i * n + i];
  }
}

class LogisticLearner final : public Learner {
 public:
  LogisticLearner(const LabelledRows& rows, double ridge)
      : rows_(rows),
        ridge_(ridge),
        width_(static_cast<size_t>(rows.features) + 1),
        outputs_(rows.classes == 2 ? 1 : static_cast<size_t>(rows.classes)) {
    const auto unknowns = static_cast<int64_t>(width_ * outputs_);
    if (unknowns > kUnknownsMax)
      base::fail_input("study.learner = logistic: {} features and {} classes make {} unknowns; at most {}. Use study.learner = recipe.",
                       rows.features, rows.classes, unknowns, kUnknownsMax);
  }

  Predictions predict(std::span<const int64_t> training, std::span<const int64_t> rows) const override {
    std::vector<int64_t> sorted(training.begin(), training.end());
    std::sort(sorted.begin(), sorted.end());  // sums do not depend on the order
    const std::vector<double> w = fit(sorted);
    Predictions found{.classes = rows_.classes};
    found.log_probabilities.reserve(rows.size() * static_cast<size_t>(rows_.classes));
    std::vector<double> z(outputs_);
    for (const int64_t row : rows) {
      outputs(w, row, z);
      if (outputs_ == 1) {
        found.log_probabilities.push_back(-softplus(z[0]));
        found.log_probabilities.push_back(-softplus(-z[0]));
      } else {
        const double lse = log_sum(z);
        for (const double one : z) found.log_probabilities.push_back(one - lse);
      }
    }
    return found;
  }

 private:
  static double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
  static double log_sum(const std::vector<double>& z) {
    const double most = *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (const double one : z) sum += std::exp(one - most);
    return most + std::log(sum);
  }

  double feature(int64_t row, size_t k) const { return k + 1 == width_ ? 1 : rows_.values[static_cast<size_t>(row) * (width_ - 1) + k]; }
  void outputs(const std::vector<double>& w, int64_t row, std::vector<double>& z) const {
    const double* const x = rows_.values.data() + static_cast<size_t>(row) * (width_ - 1);
    for (size_t c = 0; c < outputs_; ++c) {
      double sum = w[c * width_ + width_ - 1];
      for (size_t k = 0; k + 1 < width_; ++k) sum += w[c * width_ + k] * x[k];
      z[c] = sum;
    }
  }
  double ridge_of(size_t unknown) const { return unknown % width_ + 1 == width_ ? ridge_ * kOffsetRidge : ridge_; }

  double objective(const std::vector<double>& w, const std::vector<int64_t>& samples) const {
    double sum = 0;
    std::vector<double> z(outputs_);
    for (const int64_t row : samples) {
      outputs(w, row, z);
      const int64_t label = rows_.labels[static_cast<size_t>(row)];
      sum += outputs_ == 1 ? softplus(label == 1 ? -z[0] : z[0]) : log_sum(z) - z[static_cast<size_t>(label)];
    }
    for (size_t i = 0; i < w.size(); ++i) sum += ridge_of(i) * w[i] * w[i] / 2;
    return sum;
  }

  // Gradient and Hessian (its lower half) at w.
  void equations(const std::vector<double>& w, const std::vector<int64_t>& samples, std::vector<double>& gradient,
                 std::vector<double>& hessian) const {
    const size_t n = w.size();
    std::fill(gradient.begin(), gradient.end(), 0);
    std::fill(hessian.begin(), hessian.end(), 0);
    std::vector<double> z(outputs_), p(outputs_), x(width_);
    for (const int64_t row : samples) {
      outputs(w, row, z);
      for (size_t k = 0; k < width_; ++k) x[k] = feature(row, k);
      const int64_t label = rows_.labels[static_cast<size_t>(row)];
      const double lse = outputs_ == 1 ? 0 : log_sum(z);
      for (size_t c = 0; c < outputs_; ++c) p[c] = outputs_ == 1 ? 1 / (1 + std::exp(-z[0])) : std::exp(z[c] - lse);
      for (size_t c = 0; c < outputs_; ++c) {
        const double slope = p[c] - static_cast<double>(outputs_ == 1 ? label == 1 : static_cast<size_t>(label) == c);
        for (size_t k = 0; k < width_; ++k) gradient[c * width_ + k] += slope * x[k];
        for (size_t d = 0; d <= c; ++d) {
          const double curvature = (c == d ? p[c] : 0) - p[c] * p[d];
          for (size_t k = 0; k < width_; ++k)
            for (size_t l = 0; l < (c == d ? k + 1 : width_); ++l)
              hessian[(c * width_ + k) * n + d * width_ + l] += curvature * x[k] * x[l];
        }
      }
    }
    for (size_t i = 0; i < n; ++i) {
      gradient[i] += ridge_of(i) * w[i];
      hessian[i * n + i] += ridge_of(i);
    }
  }

  std::vector<double> fit(const std::vector<int64_t>& samples) const {
    std::vector<double> w(width_ * outputs_), gradient(w.size()), hessian(w.size() * w.size()), next(w.size());
    double here = objective(w, samples);
    for (int step = 0; step < kNewtonSteps; ++step) {
      equations(w, samples, gradient, hessian);
      double largest = 0;
      for (const double one : gradient) largest = std::max(largest, std::abs(one));
      if (largest < kGradientMax) break;
      solve_in_place(hessian, gradient);
      double size = 1, there = here;
      int halving = 0;
      for (; halving < kHalvings; ++halving, size /= 2) {
        for (size_t i = 0; i < w.size(); ++i) next[i] = w[i] - size * gradient[i];
        there = objective(next, samples);
        if (there <= here) break;
      }
      if (halving == kHalvings) break;  // as low as doubles can tell
      w = next;
      if (there == here) break;
      here = there;
    }
    return w;
  }

  const LabelledRows& rows_;
  const double ridge_;
  const size_t width_, outputs_;
};

}  // namespace

std::unique_ptr<Learner> make_logistic_learner(const LabelledRows& rows, double ridge) {
  return std::make_unique<LogisticLearner>(rows, ridge);
}

}  // namespace cairn::study
