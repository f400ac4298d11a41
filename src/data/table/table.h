// Labelled tables: the rows of CSV files as numbers and class labels.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/corpus/bad_lines.h"

namespace cairn::data {

struct DataOptions;

// The usable rows of one file.
struct TableRows {
  std::string origin;                                  // "data.path = iris.csv"
  std::vector<std::string> features = {};              // names of the columns of `values`
  std::vector<float> values = {};                      // [rows, features]
  std::vector<std::string> labels = {};                // as written
  std::vector<std::vector<std::string>> ignored = {};  // columns that are not features, as written; see `ignored_names`
  std::vector<std::string> ignored_names = {};         // of data.ignore
  int64_t rows() const { return static_cast<int64_t>(labels.size()); }
};

// All files of a recipe with the classes of their labels. Classes: where all labels are whole numbers from 0 on, these numbers; otherwise
// the different labels in order (numbers by size, words by letters).
struct Table {
  std::vector<TableRows> sources;  // data.path, or each of data.sources
  std::vector<TableRows> test;     // data.test_file: one entry, or none
  std::vector<std::string> classes;
  BadLines bad;
  int64_t features() const { return static_cast<int64_t>(sources.front().features.size()); }
  int64_t class_of(const std::string& label) const;  // -1: none
};

// Reads the files that the options name. Refused with file, line and column: cells that are not finite numbers, rows with too few or too
// many cells, labels of the test file that are none of these classes (data.on_bad = skip leaves such rows out); a file without rows, fewer
// than two classes, columns that are not there, files with different columns.
Table read_table(const DataOptions& data);

}  // namespace cairn::data
