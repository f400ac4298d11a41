// Small labelled tables that proofs of studies make, as CSV files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace cairn::study {

struct MadeTable {
  int64_t features = 0;
  std::vector<float> values = {};  // [rows, features]
  std::vector<int64_t> labels = {};
  std::vector<std::pair<std::string, std::vector<int64_t>>> columns = {};  // further ones, for data.ignore
  int64_t rows() const { return static_cast<int64_t>(labels.size()); }
};

void write_made_table(const std::filesystem::path& path, const MadeTable& table, int64_t first = 0, int64_t count = -1);

// Spearman's rank correlation.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b);
double mean_of(const std::vector<double>& values);

}  // namespace cairn::study
