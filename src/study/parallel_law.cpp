// The fit. Parameters are ln E, ln A, ln alpha and ln k, so that all stay positive. Each step solves the Gauss-Newton equations of the
// Huber loss, whose points are weighted by min(1, delta / |residual|), with Levenberg's damping: only steps that lower the objective are
// taken.
#include "study/parallel_law.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"

namespace cairn::study {
namespace {

constexpr int kParameters = 4;
constexpr double kHuberDelta = 1e-3;
constexpr size_t kPointsMin = 8;
constexpr int kStepsMax = 500, kDampingsMax = 30;
constexpr double kExponentMax = 50, kStepMax = 2;  // losses of e^50 are far outside; a step changes no parameter by more than e^2

using Vector = std::array<double, kParameters>;
using Matrix = std::array<Vector, kParameters>;

ParallelLaw law_of(const Vector& t) { return {.e = std::exp(t[0]), .a = std::exp(t[1]), .k = std::exp(t[3]), .alpha = std::exp(t[2])}; }

// The objective with its Gauss-Newton equations at one place.
struct Equations {
  double objective = 0;
  Vector gradient = {};  // the step solves curvature step = gradient
  Matrix curvature = {};
};

std::optional<Equations> equations_at(const Vector& t, std::span<const LawPoint> points) {
  const ParallelLaw law = law_of(t);
  Equations all;
  for (const LawPoint& point : points) {
    const double gain = law.k * std::log(point.streams), u = t[1] - std::log(point.parameters) - std::log(gain + 1),
                 exponent = law.alpha * u;
    if (!(exponent < kExponentMax)) return std::nullopt;
    const double reducible = std::exp(exponent), loss = law.e + reducible, residual = std::log(point.loss) - std::log(loss);
    const Vector slope{law.e / loss, reducible * law.alpha / loss, reducible * law.alpha * u / loss,
                       -reducible * law.alpha * gain / (gain + 1) / loss};  // of ln L(N, P)
    const double size = std::abs(residual), weight = size <= kHuberDelta ? 1 : kHuberDelta / size;
    all.objective += size <= kHuberDelta ? residual * residual / 2 : kHuberDelta * (size - kHuberDelta / 2);
    for (size_t i = 0; i < kParameters; ++i) {
      all.gradient[i] += weight * residual * slope[i];
      for (size_t j = 0; j < kParameters; ++j) all.curvature[i][j] += weight * slope[i] * slope[j];
    }
  }
  return all;
}

// Gaussian elimination with pivots; nothing where the equations are singular.
std::optional<Vector> solve(Matrix m, Vector b) {
  for (size_t i = 0; i < kParameters; ++i) {
    size_t pivot = i;
    for (size_t j = i + 1; j < kParameters; ++j)
      if (std::abs(m[j][i]) > std::abs(m[pivot][i])) pivot = j;
    std::swap(m[i], m[pivot]);
    std::swap(b[i], b[pivot]);
    if (!(std::abs(m[i][i]) > std::numeric_limits<double>::min())) return std::nullopt;
    for (size_t j = i + 1; j < kParameters; ++j) {
      const double factor = m[j][i] / m[i][i];
      for (size_t c = i; c < kParameters; ++c) m[j][c] -= factor * m[i][c];
      b[j] -= factor * b[i];
    }
  }
  for (size_t i = kParameters; i-- > 0;) {
    for (size_t c = i + 1; c < kParameters; ++c) b[i] -= m[i][c] * b[c];
    b[i] /= m[i][i];
  }
  return b;
}

struct Minimum {
  Vector at = {};
  double objective = std::numeric_limits<double>::infinity();
};

Minimum descend(Vector at, std::span<const LawPoint> points) {
  std::optional<Equations> here = equations_at(at, points);
  if (!here) return {};
  double damping = 1e-3;
  for (int step = 0; step < kStepsMax; ++step) {
    bool lower = false;
    const double before = here->objective;
    for (int attempt = 0; attempt < kDampingsMax && !lower; ++attempt) {
      Matrix damped = here->curvature;
      for (size_t i = 0; i < kParameters; ++i) damped[i][i] += damping * here->curvature[i][i] + 1e-18;
      if (std::optional<Vector> way = solve(damped, here->gradient)) {
        double largest = 0;
        for (const double d : *way) largest = std::max(largest, std::abs(d));
        Vector there = at;
        for (size_t i = 0; i < kParameters; ++i) there[i] += (*way)[i] * (largest > kStepMax ? kStepMax / largest : 1);
        std::optional<Equations> next = equations_at(there, points);
        if (next && next->objective < before) at = there, here = next, lower = true;
      }
      damping = lower ? std::max(damping / 10, 1e-12) : damping * 4;
    }
    if (!lower || before - here->objective < 1e-16 * before) break;
  }
  return {at, here->objective};
}

void check_points(std::span<const LawPoint> points) {
  if (points.size() < kPointsMin)
    base::fail_input("a fit of {} points: the law has four constants. Give at least {} points.", points.size(), kPointsMin);
  for (const LawPoint& p : points)
    if (!(p.parameters > 0) || !(p.streams >= 1) || !(p.loss > 0) || !std::isfinite(p.parameters + p.streams + p.loss))
      base::fail_input("a point of {} parameters, {} streams and loss {}: all must be positive. Correct or drop it.", p.parameters,
                       p.streams, p.loss);
  if (std::all_of(points.begin(), points.end(), [&](const LawPoint& p) { return p.streams == points[0].streams; }))
    base::fail_input("all points have {} streams: k is not identifiable. Add losses of another number of streams.", points[0].streams);
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == ',')
      cells.emplace_back();
    else if (c != ' ' && c != '\t' && c != '\r' && c != '"')
      cells.back() += c;
  }
  return cells;
}

}  // namespace

double ParallelLaw::loss(double parameters, double streams) const {
  return e + std::pow(a / (parameters * (k * std::log(streams) + 1)), alpha);
}

LawFit fit_parallel_law(std::span<const LawPoint> points) {
  check_points(points);
  Minimum best;
  for (const double ln_e : {-1.0, -0.5, 0.0})
    for (const double ln_a : {-4.0, -2.0, 0.0, 2.0, 4.0})  // of A / 10^9
      for (const double alpha : {1e-3, 0.5, 1.0, 1.5, 2.0})
        for (const double k : {0.2, 0.4, 0.6, 0.8}) {
          const Minimum found = descend({ln_e, ln_a + std::log(1e9), std::log(alpha), std::log(k)}, points);
          if (found.objective < best.objective) best = found;
        }
  CAIRN_CHECK(std::isfinite(best.objective), "no start of the fit gave a finite objective");
  LawFit fit{.law = law_of(best.at), .objective = best.objective};
  double mean = 0, residual = 0, spread = 0;
  for (const LawPoint& p : points) mean += p.loss / static_cast<double>(points.size());
  for (const LawPoint& p : points) {
    residual += std::pow(p.loss - fit.law.loss(p.parameters, p.streams), 2);
    spread += std::pow(p.loss - mean, 2);
  }
  fit.r_squared = 1 - residual / spread;
  return fit;
}

std::vector<LawPoint> parse_law_points(const std::string& text, const std::string& file) {
  std::vector<LawPoint> points;
  std::array<size_t, 3> column{};
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::vector<std::string> cells = cells_of(text.substr(at, end - at));
    at = end + 1, ++number;
    if (cells[0].starts_with('#') || (cells.size() == 1 && cells[0].empty())) continue;
    if (points.empty() && std::none_of(cells[0].begin(), cells[0].end(), [](char c) { return c >= '0' && c <= '9'; })) {
      const auto place = [&](const char* name, const char* letter) {
        for (size_t i = 0; i < cells.size(); ++i)
          if (cells[i] == name || cells[i] == letter) return i + 1;
        base::fail_corrupt(file, fmt::format("line {}: no column is named {} or {}", number, name, letter));
      };
      column = {place("parameters", "N"), place("streams", "P"), place("loss", "L")};
      continue;
    }
    if (column[0] == 0) base::fail_corrupt(file, "the first line must name the columns: parameters, streams, loss");
    const auto value = [&](size_t i) {
      double found = 0;
      const std::string& cell = column[i] <= cells.size() ? cells[column[i] - 1] : "";
      const auto [rest, error] = std::from_chars(cell.data(), cell.data() + cell.size(), found);
      if (error != std::errc() || rest != cell.data() + cell.size())
        base::fail_corrupt(file, fmt::format("line {}: \"{}\" is no number", number, cell));
      return found;
    };
    points.push_back({.parameters = value(0), .streams = value(1), .loss = value(2)});
  }
  return points;
}

std::string to_tables(const LawFit& fit, std::span<const LawPoint> points) {
  const ParallelLaw& l = fit.law;
  std::string text = fmt::format(
      "L(N, P) = E + (A / (N (k ln P + 1)))^alpha\n  E = {:.4f}  A = {:.4g}  k = {:.4f}  alpha = {:.4f}  R^2 = {:.4f}  ({} points)\n\n"
      "  {:>14}  {:>7}  {:>8}  {:>8}  {:>9}\n",
      l.e, l.a, l.k, l.alpha, fit.r_squared, points.size(), "parameters", "streams", "loss", "law", "apart");
  for (const LawPoint& p : points) {
    const double expected = l.loss(p.parameters, p.streams);
    text +=
        fmt::format("  {:>14.0f}  {:>7g}  {:>8.4f}  {:>8.4f}  {:>+9.4f}\n", p.parameters, p.streams, p.loss, expected, p.loss - expected);
  }
  text += "\n";
  for (const int streams : {2, 4, 8})
    text += fmt::format("  {} streams act like {:.2f} times the parameters\n", streams, l.k * std::log(streams) + 1);
  return text;
}

std::string to_json(const LawFit& fit, std::span<const LawPoint> points) {
  base::OrderedJson json;
  json["E"] = fit.law.e, json["A"] = fit.law.a, json["k"] = fit.law.k, json["alpha"] = fit.law.alpha;
  json["r_squared"] = fit.r_squared;
  json["objective"] = fit.objective;
  for (const LawPoint& p : points)
    json["points"].push_back(
        {{"parameters", p.parameters}, {"streams", p.streams}, {"loss", p.loss}, {"law", fit.law.loss(p.parameters, p.streams)}});
  return base::pretty(json);
}

}  // namespace cairn::study
