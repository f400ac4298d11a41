#include "data/table/table_dataset.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "data/options.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

class TableDataset final : public Dataset {
 public:
  TableDataset(std::vector<float> values, std::vector<int64_t> labels, int64_t training)
      : values_(std::move(values)), labels_(std::move(labels)), training_(training) {}

  SampleRange training() const override { return {0, training_}; }
  SampleRange held_out() const override { return {training_, static_cast<int64_t>(labels_.size()) - training_}; }
  int64_t tokens_in(int64_t) const override { return 1; }
  int64_t label_of(int64_t sample) const override { return labels_.at(static_cast<size_t>(sample)); }

  void fill(std::span<const int64_t> ids, mesh::Batch& batch) const override {
    const auto n = static_cast<int64_t>(ids.size());
    const size_t width = values_.size() / labels_.size();
    batch.ids = at::empty({n}, at::kLong);
    const at::Tensor features = at::empty({n, static_cast<int64_t>(width)}, at::kFloat), labels = at::empty({n}, at::kLong);
    for (size_t i = 0; i < ids.size(); ++i) {
      CAIRN_CHECK(ids[i] >= 0 && ids[i] < static_cast<int64_t>(labels_.size()), "row {} of {}", ids[i], labels_.size());
      const auto row = static_cast<size_t>(ids[i]);
      batch.ids.data_ptr<int64_t>()[i] = ids[i];
      std::memcpy(features.data_ptr<float>() + i * width, values_.data() + row * width, width * sizeof(float));
      labels.data_ptr<int64_t>()[i] = labels_[row];
    }
    batch.fields["features"] = {features};
    batch.fields["labels"] = {labels};
  }

 private:
  std::vector<float> values_;  // [rows, features]
  std::vector<int64_t> labels_;
  int64_t training_;
};

// Rows of a source in the order of samples.
struct Part {
  const TableRows* rows = nullptr;
  int64_t first = 0, count = 0;
};

// Gives every column mean 0 and deviation 1 over the first `training` rows. A constant column becomes 0.
void standardize(std::vector<float>& values, size_t width, size_t training) {
  for (size_t column = 0; column < width; ++column) {
    double sum = 0, squares = 0;
    for (size_t row = 0; row < training; ++row) sum += static_cast<double>(values[row * width + column]);
    const double mean = sum / static_cast<double>(training);
    for (size_t row = 0; row < training; ++row) squares += std::pow(static_cast<double>(values[row * width + column]) - mean, 2);
    const double deviation = std::sqrt(squares / static_cast<double>(training));
    const double factor = deviation > 1e-12 * std::abs(mean) ? 1 / deviation : 0;
    for (size_t at = column; at < values.size(); at += width)
      values[at] = static_cast<float>((static_cast<double>(values[at]) - mean) * factor);
  }
}

// Training rows of all sources, then held-out rows.
std::vector<Part> parts_of(const Table& table, double held_out_fraction, std::vector<SampleRange>& training) {
  std::vector<Part> parts, held;
  int64_t first = 0;
  for (const TableRows& rows : table.sources) {
    const bool tested = !table.test.empty();
    const auto kept_out = tested ? 0 : static_cast<int64_t>(static_cast<double>(rows.rows()) * held_out_fraction);
    if (kept_out == rows.rows()) base::fail_input("{}: {} rows leave none to train on. Lower eval.fraction.", rows.origin, rows.rows());
    parts.push_back({&rows, 0, rows.rows() - kept_out});
    held.push_back({&rows, rows.rows() - kept_out, kept_out});
    training.push_back({first, parts.back().count});
    first += parts.back().count;
  }
  for (const TableRows& rows : table.test) held.push_back({&rows, 0, rows.rows()});
  parts.insert(parts.end(), held.begin(), held.end());
  return parts;
}

}  // namespace

TableSamples open_table(const DataOptions& data, double held_out_fraction, base::Log& log) {
  TableSamples opened{.table = read_table(data)};
  Table& table = opened.table;
  if (table.bad.count > 0) log.warn("{}: {}", table.sources.front().origin, table.bad.summary());
  const auto width = static_cast<size_t>(table.features());
  std::vector<float> values;
  std::vector<int64_t> labels;
  for (const Part& part : parts_of(table, held_out_fraction, opened.training)) {
    const auto begin = part.rows->values.begin() + part.first * static_cast<int64_t>(width);
    values.insert(values.end(), begin, begin + part.count * static_cast<int64_t>(width));
    for (int64_t row = part.first; row < part.first + part.count; ++row)
      labels.push_back(table.class_of(part.rows->labels[static_cast<size_t>(row)]));
  }
  const int64_t training = opened.training.back().first + opened.training.back().count;
  if (data.standardize) standardize(values, width, static_cast<size_t>(training));
  base::Checksum sum;
  sum.add(std::as_bytes(std::span(values)));
  sum.add(std::as_bytes(std::span(labels)));
  opened.digest = sum.value();
  for (size_t i = 0; i < data.weights.size(); ++i) opened.streams.push_back({opened.training[i], data.weights[i]});
  opened.features = table.features();
  opened.classes = static_cast<int64_t>(table.classes.size());
  for (TableRows& rows : table.sources) rows.values = {};
  for (TableRows& rows : table.test) rows.values = {};
  opened.samples = std::make_unique<TableDataset>(std::move(values), std::move(labels), training);
  return opened;
}

}  // namespace cairn::data
