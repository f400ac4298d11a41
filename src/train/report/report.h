// The report of a run: one self-contained HTML page with plots, samples, traffic and the recipe. It does not use libtorch.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cairn::train {

struct ReportData {
  // One step, as in metrics.jsonl. A value that is not finite is left out of plots and shown as a dash.
  struct Row {
    int64_t step = 0;
    double loss = 0;
    double tokens_per_s = 0;
    double memory_bytes = 0;
    double lr = 0;
    double grad_norm = 0;
    double seconds = 0;  // since the run began
    int64_t tokens = 0;  // seen so far
  };
  struct Sample {
    std::string prompt;
    std::string text;  // the model's continuation of the prompt
  };

  std::string title;
  std::vector<Row> rows;                                            // in order of step
  std::vector<std::pair<int64_t, double>> held_out;                 // step, loss
  std::vector<std::pair<int64_t, double>> local = {}, merged = {};  // likewise: mean of the islands, and of their mean (merge_loss)
  std::vector<Sample> samples;
  std::string recipe_toml;                                 // resolved
  std::string ledger_json;                                 // as in ledger.json; if it is empty or unreadable, the table is left out
  std::vector<std::pair<std::string, std::string>> facts;  // machine, model, versions: name and value
};

// The whole page: no outside resource, readable without scripts, light and dark. All text is escaped.
std::string report_html(const ReportData& data);

}  // namespace cairn::train
