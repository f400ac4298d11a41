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

#include "base/files.h"

namespace cairn::base {

// One measurement: named values in order, `step` usually first.
struct MetricsRow {
  using Value = std::variant<int64_t, double, std::string>;
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
  // Appends. An incomplete last line, left by a crash, is dropped first.
  explicit Metrics(std::filesystem::path path, const Disk& disk = real_disk());
  void write(const MetricsRow& row);

 private:
  std::mutex mutex_;
  Appender file_;
};

// The first `rows_max` rows of a file, without an incomplete last line. Anything else malformed is corrupt_file with its line.
std::vector<MetricsRow> read_metrics(const std::filesystem::path& path, int64_t rows_max = std::numeric_limits<int64_t>::max());

// Rewrites the file, atomically, keeping the rows whose `step` is at most `step_last`, and rows without one. No file: nothing to do.
void truncate_metrics(const std::filesystem::path& path, int64_t step_last, const Disk& disk = real_disk());

}  // namespace cairn::base
