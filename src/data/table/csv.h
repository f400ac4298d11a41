// Records of a CSV file: fields between separators, in quotes where they hold one.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::data {

// The separator of a file, from its first line: a comma, a semicolon or a tab, whichever occurs most outside quotes.
char csv_separator(std::string_view text);

// Reads records one by one. A field in quotes may hold separators, line ends and quotes (written twice); spaces around fields are dropped.
// Empty lines are skipped.
class CsvReader {
 public:
  CsvReader(std::string_view text, char separator);
  // False at the end. `error` is what is wrong with the record, empty for nothing; the reader goes on with the next line.
  bool next(std::vector<std::string>& fields, std::string& error);
  int64_t line() const { return line_; }  // of the record read last, from 1

 private:
  std::string_view record();

  std::string_view rest_;
  char separator_;
  int64_t line_ = 0, next_line_ = 1;
};

}  // namespace cairn::data
