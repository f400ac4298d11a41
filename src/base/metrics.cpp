#include "base/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <system_error>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"

namespace cairn::base {
namespace {

constexpr const char* kNan = "NaN";
constexpr const char* kInfinity = "Infinity";
constexpr const char* kMinusInfinity = "-Infinity";
constexpr std::string_view kEvaluation = ",\"eval_loss\":";  // an open row ends with it

OrderedJson to_json(double number) {
  if (std::isnan(number)) return kNan;
  if (std::isinf(number)) return number > 0 ? kInfinity : kMinusInfinity;
  return number;
}

OrderedJson to_json(const MetricsRow::Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<double>(&value)) return to_json(*number);
  OrderedJson list = OrderedJson::array();
  for (const double number : std::get<std::vector<double>>(value)) list.push_back(to_json(number));
  return list;
}

// What to_json writes for a double.
std::optional<double> number_in(const OrderedJson& json) {
  if (json.is_number()) return json.get<double>();
  if (json.is_null() || json == kNan) return std::numeric_limits<double>::quiet_NaN();
  if (json == kInfinity) return std::numeric_limits<double>::infinity();
  if (json == kMinusInfinity) return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

MetricsRow::Value from_json(const OrderedJson& json) {
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return json.get<double>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_boolean()) return int64_t{json.get<bool>()};
  if (const std::optional<double> number = number_in(json)) return *number;
  if (json.is_array() && std::all_of(json.begin(), json.end(), [](const OrderedJson& one) { return number_in(one).has_value(); })) {
    std::vector<double> numbers;
    for (const OrderedJson& one : json) numbers.push_back(*number_in(one));
    return numbers;
  }
  return json.is_string() ? json.get<std::string>() : compact(json);
}

constexpr size_t kLineBytesMax = 1 << 20;

// The next line; of one that is too long, a byte more than the limit.
bool read_line(std::istream& in, std::string& line) {
  line.clear();
  for (int c = in.get(); c != EOF; c = in.get()) {
    if (c == '\n') return true;
    line += static_cast<char>(c);
    if (line.size() > kLineBytesMax) return true;
  }
  return !line.empty();
}

OrderedJson parse_row(const std::string& line) {
  return scan_json(line, {.depth = 16}).trouble.empty() ? parse_ordered_json(line) : OrderedJson();
}

// Hands every whole row to `take`, as text and parsed. A last row whose evaluation is missing ends before it. Any other incomplete last
// line (a crash) is left out; any other line that is not an object is damage.
void for_each_row(const std::filesystem::path& path, const std::function<void(const std::string&, const OrderedJson&)>& take,
                  int64_t rows_max = std::numeric_limits<int64_t>::max()) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    fail_input("cannot open {}: it is {}", path.string(), std::filesystem::is_directory(status) ? "a folder" : "not a regular file");
  std::ifstream in(path, std::ios::binary);
  if (!in) fail_input("cannot open {}: {}", path.string(), std::generic_category().message(errno));
  std::string line, bad_line;
  std::optional<int64_t> bad;
  for (int64_t number = 1; number <= rows_max && read_line(in, line); ++number) {
    if (line.size() > kLineBytesMax)
      throw Error(Error::Kind::corrupt_file, fmt::format("{}:{}: a line of more than {} bytes", path.string(), number, kLineBytesMax));
    if (bad) throw Error(Error::Kind::corrupt_file, fmt::format("{}:{}: not a JSON object", path.string(), *bad));
    const OrderedJson json = parse_row(line);
    if (json.is_object()) {
      take(line, json);
    } else {
      bad = number;
      bad_line = line;
    }
  }
  if (!bad_line.ends_with(kEvaluation)) return;
  bad_line.replace(bad_line.size() - kEvaluation.size(), kEvaluation.size(), "}");
  if (const OrderedJson json = parse_row(bad_line); json.is_object()) take(bad_line, json);
}

bool ends_in_newline(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in || in.tellg() <= 0) return true;  // missing or empty: nothing torn
  in.seekg(-1, std::ios::end);
  return in.get() == '\n';
}

std::filesystem::path mended(std::filesystem::path path, const Disk& disk) {
  if (!ends_in_newline(path)) truncate_metrics(path, std::numeric_limits<int64_t>::max(), disk);
  return path;
}

std::string to_line(const MetricsRow& row) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, value] : row.values) json[name] = to_json(value);
  return compact(json);
}

const MetricsRow::Value& find(const MetricsRow& row, std::string_view name) {
  for (const auto& [key, value] : row.values)
    if (key == name) return value;
  fail_input("a metrics row has no \"{}\"", name);
}

}  // namespace

bool MetricsRow::has(std::string_view name) const {
  return std::any_of(values.begin(), values.end(), [&](const auto& entry) { return entry.first == name; });
}

double MetricsRow::number(std::string_view name) const {
  const Value& value = find(*this, name);
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  fail_input("\"{}\" of a metrics row is not a number: {}", name, compact(to_json(value)));
}

int64_t MetricsRow::integer(std::string_view name) const {
  const Value& value = find(*this, name);
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  fail_input("\"{}\" of a metrics row is not an integer", name);
}

Metrics::Metrics(std::filesystem::path path, const Disk& disk, LogFile::Warn warn)
    : file_(mended(std::move(path), disk), disk, std::move(warn)) {}

void Metrics::write(const MetricsRow& row) {
  const std::string line = to_line(row) + "\n";
  const std::lock_guard lock(mutex_);
  file_.append(as_bytes(line));
}

void Metrics::write_before_evaluation(const MetricsRow& row) {
  std::string line = to_line(row);
  line.pop_back();  // the brace
  const std::lock_guard lock(mutex_);
  open_row_ = line.append(kEvaluation);
  open_row_lost_ = !file_.append(as_bytes(open_row_));
}

void Metrics::evaluated(const MetricsRow& values) {
  const std::string line = to_line(values);
  const std::string_view begin = "{\"eval_loss\":";
  CAIRN_CHECK(line.starts_with(begin), "the values of an evaluation begin with {}", line);
  const std::string rest = line.substr(begin.size()) + "\n";
  const std::lock_guard lock(mutex_);
  open_row_lost_ ? file_.append(as_bytes(open_row_ + rest)) : file_.append(as_bytes(rest), open_row_);
}

std::vector<MetricsRow> read_metrics(const std::filesystem::path& path, int64_t rows_max) {
  std::vector<MetricsRow> rows;
  const auto take = [&](const std::string&, const OrderedJson& json) {
    MetricsRow row;
    for (const auto& [name, value] : json.items()) row.values.emplace_back(name, from_json(value));
    rows.push_back(std::move(row));
  };
  for_each_row(path, take, rows_max);
  return rows;
}

void truncate_metrics(const std::filesystem::path& path, int64_t step_last, const Disk& disk) {
  if (!std::filesystem::exists(path)) return;
  FileWriter writer(path, /*bytes_expected=*/0, disk);
  for_each_row(path, [&](const std::string& line, const OrderedJson& json) {
    const auto step = json.find("step");
    const bool beyond = step != json.end() && step->is_number() && step->get<double>() > static_cast<double>(step_last);
    if (!beyond) writer.write(line + "\n");
  });
  writer.commit();
}

}  // namespace cairn::base
