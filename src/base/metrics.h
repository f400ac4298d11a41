#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/files/disk.h"
#include "base/log_file.h"

namespace cairn::base {

// One measurement: named values in order, `step` usually first.
struct MetricsRow {
  using Value = std::variant<int64_t, double, std::string, std::vector<double>>;
  std::vector<std::pair<std::string, Value>> values;

  bool has(std::string_view name) const;
  double number(std::string_view name) const;  // an integer or a double; bad_input where there is none
  int64_t integer(std::string_view name) const;
  friend bool operator==(const MetricsRow&, const MetricsRow&) = default;
};

// A run's metrics.jsonl: one JSON object a line, numbers exact, visible to a reader as soon as write() returns. Numbers that are
// not finite are written as "NaN", "Infinity", "-Infinity", and read back as such.
class Metrics {
 public:
  // Appends. An incomplete last line, left by a crash, is dropped first. Writing never throws (LogFile); `warn` hears of trouble.
  explicit Metrics(std::filesystem::path path, const Disk& disk = real_disk(), LogFile::Warn warn = {});
  void write(const MetricsRow& row);

  // Writes a row whose evaluation follows. The row is on disk at once, and complete with evaluated(); if the run dies in between, readers
  // get it without the values of the evaluation.
  void write_before_evaluation(const MetricsRow& row);
  // The end of that row. The first value must be "eval_loss".
  void evaluated(const MetricsRow& values);

 private:
  std::mutex mutex_;
  LogFile file_;
  std::string open_row_;  // the last row whose evaluation follows, up to its values
  bool open_row_lost_ = false;
};

// The first `rows_max` rows of a file, without an incomplete last line. Anything else malformed is corrupt_file with its line.
std::vector<MetricsRow> read_metrics(const std::filesystem::path& path, int64_t rows_max = std::numeric_limits<int64_t>::max());

// Rewrites the file, atomically, keeping the rows whose `step` is at most `step_last`, and rows without one. No file: nothing to do.
void truncate_metrics(const std::filesystem::path& path, int64_t step_last, const Disk& disk = real_disk());

}  // namespace cairn::base
