// What `cairn select` chose, as a page: figures, a histogram of scores, shares by source, documents kept and dropped.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace cairn::cli {

struct SelectionReport {
  std::string command;                                          // as it was typed
  std::vector<std::pair<std::string, std::string>> facts = {};  // lines of the first table
  std::string score_name = {};
  std::vector<float> kept_scores = {}, dropped_scores = {};  // both empty: there are none
  struct Share {
    std::string name;
    int64_t pool = 0, kept = 0;
  };
  std::vector<Share> shares = {};  // by source, then by label
  struct Example {
    int64_t document = 0;
    bool kept = false;
    float score = 0;
    std::string text;
  };
  std::vector<Example> examples = {};
  base::OrderedJson figures = base::OrderedJson::object();  // of the method
  std::vector<std::string> warnings = {};
};

// The figures of a method as lines of a label and a value, without the table of clusters.
std::vector<std::pair<std::string, std::string>> figure_lines(const base::OrderedJson& figures);

// Bars of both kinds over the scores.
std::string draw_score_histogram(const SelectionReport& report);
// For each source its share of the pool and of what was kept.
std::string draw_shares(const SelectionReport& report);
// Clusters of density-based pruning: distance to others over distance within; the area of a dot is its quota.
std::string draw_clusters(const SelectionReport& report);

// Writes report.html, report.md and the drawings as SVG files into a folder, which is made.
void write_selection_report(const std::filesystem::path& folder, const SelectionReport& report);

}  // namespace cairn::cli
