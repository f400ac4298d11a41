#include "proofs/study_tables.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/files.h"

namespace cairn::study {

void write_made_table(const std::filesystem::path& path, const MadeTable& table, int64_t first, int64_t count) {
  std::string text;
  for (int64_t k = 0; k < table.features; ++k) text += fmt::format("x{},", k);
  for (const auto& [name, values] : table.columns) text += name + ",";
  text += "label\n";
  for (int64_t row = first; row < (count < 0 ? table.rows() : first + count); ++row) {
    for (int64_t k = 0; k < table.features; ++k) text += fmt::format("{},", table.values[static_cast<size_t>(row * table.features + k)]);
    for (const auto& [name, values] : table.columns) text += fmt::format("{},", values[static_cast<size_t>(row)]);
    text += fmt::format("{}\n", table.labels[static_cast<size_t>(row)]);
  }
  base::write_atomically(path, text);
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto ranks = [](const std::vector<double>& values) {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) { return values[i] < values[j]; });
    std::vector<double> found(values.size());
    for (size_t i = 0; i < order.size(); ++i) found[order[i]] = static_cast<double>(i);
    return found;
  };
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double middle = mean_of(x);
  double both = 0, own = 0;
  for (size_t i = 0; i < x.size(); ++i) both += (x[i] - middle) * (y[i] - middle), own += (x[i] - middle) * (x[i] - middle);
  return both / own;
}

}  // namespace cairn::study
