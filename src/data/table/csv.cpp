#include "data/table/csv.h"

#include <algorithm>

namespace cairn::data {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  return first == std::string_view::npos ? std::string_view() : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// The field that begins at `at`, and where the next one does: past the end for none.
std::string take_field(std::string_view record, size_t& at, char separator, std::string& error) {
  const size_t begin = record.find_first_not_of(separator == '\t' ? " " : " \t", at);
  if (begin == std::string_view::npos || record[begin] != '"') {
    const size_t end = std::min(record.find(separator, at), record.size());
    const std::string_view field = record.substr(at, end - at);
    at = end + 1;
    return std::string(trimmed(field));
  }
  std::string field;
  size_t i = begin + 1;
  for (; i < record.size(); ++i) {
    if (record[i] != '"') {
      field += record[i];
    } else if (i + 1 < record.size() && record[i + 1] == '"') {
      field += record[i++];
    } else {
      break;
    }
  }
  if (i == record.size()) error = "a quote is not closed";
  const size_t end = std::min(record.find(separator, std::min(i + 1, record.size())), record.size());
  if (i < record.size() && !trimmed(record.substr(i + 1, end - i - 1)).empty()) error = "text after a closing quote";
  at = end + 1;
  return field;
}

}  // namespace

char csv_separator(std::string_view text) {
  std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
  char best = ',';
  int64_t most = 0;
  for (const char one : {',', ';', '\t'}) {
    bool quoted = false;
    int64_t count = 0;
    for (const char c : line) {
      if (c == '"') quoted = !quoted;
      if (c == one && !quoted) ++count;
    }
    if (count > most) most = count, best = one;
  }
  return best;
}

CsvReader::CsvReader(std::string_view text, char separator) : rest_(text), separator_(separator) {
  if (rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);
}

// The text of the next record, which ends with the first line end outside quotes.
std::string_view CsvReader::record() {
  line_ = next_line_;
  bool quoted = false;
  size_t end = 0;
  for (; end < rest_.size() && (quoted || rest_[end] != '\n'); ++end) {
    if (rest_[end] == '"') quoted = !quoted;
    if (rest_[end] == '\n') ++next_line_;
  }
  if (quoted) {  // never closed: the record is this line alone
    next_line_ = line_;
    end = std::min(rest_.find('\n'), rest_.size());
  }
  const std::string_view found = rest_.substr(0, end);
  rest_.remove_prefix(std::min(end + 1, rest_.size()));
  ++next_line_;
  return found;
}

bool CsvReader::next(std::vector<std::string>& fields, std::string& error) {
  fields.clear();
  error.clear();
  std::string_view text;
  while (!rest_.empty() && trimmed(text = record()).empty()) {
  }
  if (trimmed(text).empty()) return false;
  if (text.ends_with('\r')) text.remove_suffix(1);
  for (size_t at = 0; at <= text.size();) fields.push_back(take_field(text, at, separator_, error));
  return true;
}

}  // namespace cairn::data
