#include "data/table/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/files.h"
#include "data/options.h"
#include "data/table/csv.h"

namespace cairn::data {
namespace {

constexpr int64_t kFileBytesMax = int64_t{8} << 30;
constexpr size_t kColumnsMax = 1 << 16;
constexpr int64_t kClassesMax = 1 << 16;

std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || begin == end) return std::nullopt;
  return value;
}

std::optional<int64_t> whole_number_in(const std::string& text) {
  const std::optional<double> value = number_in(text);
  if (!value || *value != std::floor(*value) || std::abs(*value) > 1e15) return std::nullopt;
  return static_cast<int64_t>(*value);
}

// "column 3 (petal)"
std::string column_in_words(const std::vector<std::string>& names, size_t column) {
  return names.empty() ? fmt::format("column {}", column + 1) : fmt::format("column {} ({})", column + 1, names[column]);
}

// A column by its name, or by its number from 1 on.
size_t find_column(const std::string& key, const std::string& wanted, const std::vector<std::string>& names, size_t columns,
                   const std::string& origin) {
  if (const auto at = std::find(names.begin(), names.end(), wanted); at != names.end()) return static_cast<size_t>(at - names.begin());
  const std::optional<int64_t> number = whole_number_in(wanted);
  if (number && *number >= 1 && *number <= static_cast<int64_t>(columns)) return static_cast<size_t>(*number - 1);
  if (names.empty() || number)
    base::fail_input("{} = {}: {} has columns 1 to {}. Give one of these numbers{}.", key, wanted, origin, columns,
                     names.empty() ? "; its columns have no names (data.header = false)" : " or a column's name");
  base::fail_unknown(key, wanted, names);
}

// Which cells of a record are what.
struct Columns {
  std::vector<std::string> names;  // of all columns; empty: there is no header
  std::vector<size_t> features, ignored;
  size_t label = 0, count = 0;
};

Columns columns_of(const DataOptions& data, const std::vector<std::string>& first, const std::string& origin) {
  if (first.size() > kColumnsMax) base::fail_input("{}: {} columns; at most {} are read", origin, first.size(), kColumnsMax);
  Columns found{.names = data.header ? first : std::vector<std::string>{}, .features = {}, .ignored = {}, .count = first.size()};
  found.label = data.label.empty() ? first.size() - 1 : find_column("data.label", data.label, found.names, first.size(), origin);
  for (const std::string& name : data.ignore) found.ignored.push_back(find_column("data.ignore", name, found.names, first.size(), origin));
  for (size_t i = 0; i < first.size(); ++i)
    if (i != found.label && std::find(found.ignored.begin(), found.ignored.end(), i) == found.ignored.end()) found.features.push_back(i);
  if (found.features.empty())
    base::fail_input("{}: no column is left for features: {} beside the label. Give a table with one column for each feature.", origin,
                     first.size() - 1);
  return found;
}

// Appends one record; returns what is wrong with it.
std::string append_row(const Columns& columns, const std::vector<std::string>& cells, TableRows& rows) {
  if (cells.size() != columns.count) return fmt::format("{} cells in place of {}", cells.size(), columns.count);
  const size_t before = rows.values.size();
  std::string wrong;
  if (cells[columns.label].empty()) wrong = column_in_words(columns.names, columns.label) + ": the label is empty";
  for (const size_t column : columns.features) {
    const std::optional<double> value = number_in(cells[column]);
    if (!wrong.empty()) break;
    if (!value)
      wrong = fmt::format("{}: \"{}\" is not a number (data.ignore leaves columns out)", column_in_words(columns.names, column),
                          cells[column].substr(0, 40));
    else if (!std::isfinite(static_cast<float>(*value)))
      wrong = fmt::format("{}: \"{}\" is not a finite number", column_in_words(columns.names, column), cells[column].substr(0, 40));
    else
      rows.values.push_back(static_cast<float>(*value));
  }
  if (!wrong.empty()) {
    rows.values.resize(before);
    return wrong;
  }
  rows.labels.push_back(cells[columns.label]);
  for (size_t i = 0; i < columns.ignored.size(); ++i) rows.ignored[i].push_back(cells[columns.ignored[i]]);
  return {};
}

// `known`: the labels that rows may have; null: any.
TableRows read_rows(const DataOptions& data, const std::string& key, const std::string& path, const std::set<std::string>* known,
                    BadLines& bad) {
  TableRows rows{.origin = key + " = " + path};
  const std::string text = base::read_file(path, kFileBytesMax);
  CsvReader reader(text, csv_separator(text));
  std::vector<std::string> cells;
  std::string error;
  if (!reader.next(cells, error)) base::fail_input("{}: the file is empty. Give a CSV file with one row for each sample.", rows.origin);
  const Columns columns = columns_of(data, cells, rows.origin);
  for (const size_t column : columns.features)
    rows.features.push_back(columns.names.empty() ? fmt::format("{}", column + 1) : columns.names[column]);
  rows.ignored.resize(columns.ignored.size());
  rows.ignored_names = data.ignore;
  for (bool more = data.header ? reader.next(cells, error) : true; more; more = reader.next(cells, error)) {
    if (error.empty() && known && cells.size() == columns.count && known->count(cells[columns.label]) == 0)
      error = fmt::format("{}: no training row has the label \"{}\"", column_in_words(columns.names, columns.label),
                          cells[columns.label].substr(0, 40));
    if (error.empty()) error = append_row(columns, cells, rows);
    if (error.empty()) continue;
    if (!data.skips_bad_lines()) refuse(path, {reader.line(), error});
    bad.add(path, {reader.line(), error});
  }
  if (rows.rows() == 0)
    base::fail_input("{}: no row can be used{}. Give a CSV file with one row for each sample.", rows.origin,
                     bad.count > 0 ? "; " + bad.summary() : "");
  return rows;
}

std::vector<std::string> classes_of(const std::set<std::string>& labels, const std::string& origin) {
  if (labels.size() < 2)
    base::fail_input("{}: all rows have the label \"{}\", and a classifier needs two classes. Set data.label to the column of the labels.",
                     origin, *labels.begin());
  const bool numbers = std::all_of(labels.begin(), labels.end(), [](const std::string& one) { return number_in(one).has_value(); });
  std::vector<std::string> classes(labels.begin(), labels.end());
  if (static_cast<int64_t>(labels.size()) > kClassesMax)
    base::fail_input("{}: {} different labels; at most {} classes are possible. Set data.label to the column of the labels.", origin,
                     labels.size(), kClassesMax);
  if (!numbers) return classes;
  std::stable_sort(classes.begin(), classes.end(), [](const auto& a, const auto& b) { return *number_in(a) < *number_in(b); });
  const bool whole =
      std::all_of(labels.begin(), labels.end(), [](const std::string& one) { return whole_number_in(one).value_or(-1) >= 0; });
  const int64_t largest = whole ? *whole_number_in(classes.back()) : kClassesMax;
  if (!whole || whole_number_in(classes.front()) != 0 || largest >= kClassesMax) return classes;
  std::vector<std::string> all;
  for (int64_t i = 0; i <= largest; ++i) all.push_back(std::to_string(i));
  return all;
}

void check_same_columns(const TableRows& one, const TableRows& first) {
  if (one.features != first.features)
    base::fail_input("{}: its columns [{}] are not those of {} [{}]. Give tables with the same columns.", one.origin,
                     fmt::join(one.features, ", "), first.origin, fmt::join(first.features, ", "));
}

}  // namespace

int64_t Table::class_of(const std::string& label) const {
  if (const auto at = std::find(classes.begin(), classes.end(), label); at != classes.end()) return at - classes.begin();
  const std::optional<int64_t> number = whole_number_in(label);  // "01", "1.0"
  return number && *number >= 0 && *number < static_cast<int64_t>(classes.size()) && classes.front() == "0" ? *number : -1;
}

Table read_table(const DataOptions& data) {
  if (data.path.empty() && data.sources.empty())
    base::fail_input("data.kind = {}: set data.path to a CSV file with one row for each sample", data.kind);
  if (!data.path.empty() && !data.sources.empty())
    base::fail_input("data.path = {} and data.sources are both given: put the path among the sources", data.path);
  if (!data.weights.empty() && data.weights.size() != data.sources.size())
    base::fail_input("data.weights has {} numbers for {} sources: give one for each of data.sources, or none", data.weights.size(),
                     data.sources.size());
  Table table;
  std::set<std::string> labels;
  const std::vector<std::string> paths = data.path.empty() ? data.sources : std::vector<std::string>{data.path};
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string key = data.path.empty() ? fmt::format("data.sources[{}]", i) : "data.path";
    table.sources.push_back(read_rows(data, key, paths[i], nullptr, table.bad));
    check_same_columns(table.sources.back(), table.sources.front());
    labels.insert(table.sources.back().labels.begin(), table.sources.back().labels.end());
  }
  table.classes = classes_of(labels, table.sources.front().origin);
  labels.insert(table.classes.begin(), table.classes.end());  // a number below the largest is a class, though no training row has it
  if (!data.test_file.empty()) {
    table.test.push_back(read_rows(data, "data.test_file", data.test_file, &labels, table.bad));
    check_same_columns(table.test.front(), table.sources.front());
  }
  return table;
}

}  // namespace cairn::data
