// The Hungarian method with potentials u, v: for each row in turn, a shortest augmenting path over reduced costs c - u - v >= 0
// (Kuhn 1955; in this form Jonker and Volgenant 1987). Costs are negated scores.
#include "unlearn/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace cairn::unlearn {
namespace {

// A cost above every sum of allowed ones, but small enough that sums with it keep their digits.
double forbidden_cost(const std::vector<std::vector<double>>& scores) {
  double largest = 1;
  for (const std::vector<double>& row : scores)
    for (const double one : row)
      if (std::isfinite(one)) largest = std::max(largest, std::abs(one));
  return 4 * largest * static_cast<double>(scores.size() + 1);
}

}  // namespace

std::vector<int64_t> best_assignment(const std::vector<std::vector<double>>& scores) {
  const size_t n = scores.size();
  const double forbidden = forbidden_cost(scores), infinity = std::numeric_limits<double>::infinity();
  const auto cost = [&](size_t row, size_t column) {
    const double score = scores[row - 1][column - 1];
    return std::isfinite(score) ? -score : forbidden;
  };
  // Rows and columns from 1; column 0 is where the row that is being placed starts.
  std::vector<double> u(n + 1, 0), v(n + 1, 0);
  std::vector<size_t> row_of(n + 1, 0), before(n + 1, 0);
  for (size_t row = 1; row <= n; ++row) {
    row_of[0] = row;
    size_t column = 0;
    std::vector<double> shortest(n + 1, infinity);
    std::vector<bool> reached(n + 1, false);
    while (row_of[column] != 0) {
      reached[column] = true;
      size_t next = 0;
      double least = infinity;
      for (size_t j = 1; j <= n; ++j) {
        if (reached[j]) continue;
        const double reduced = cost(row_of[column], j) - u[row_of[column]] - v[j];
        if (reduced < shortest[j]) shortest[j] = reduced, before[j] = column;
        if (shortest[j] < least) least = shortest[j], next = j;
      }
      for (size_t j = 0; j <= n; ++j) {
        if (reached[j])
          u[row_of[j]] += least, v[j] -= least;
        else
          shortest[j] -= least;
      }
      column = next;
    }
    for (; column != 0; column = before[column]) row_of[column] = row_of[before[column]];
  }
  std::vector<int64_t> column_of(n, -1);
  for (size_t j = 1; j <= n; ++j) column_of[row_of[j] - 1] = static_cast<int64_t>(j - 1);
  for (size_t i = 0; i < n; ++i)
    CAIRN_CHECK(std::isfinite(scores[i][static_cast<size_t>(column_of[i])]), "row {} has no column left that it may take", i);
  return column_of;
}

}  // namespace cairn::unlearn
