// Labelled tables as a data set for classifiers.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"
#include "data/sampler.h"
#include "data/table/table.h"

namespace cairn::base {
class Log;
}

namespace cairn::data {

struct DataOptions;

// A table and where its rows are: the training rows of all sources in order, then the held-out ones. Held out are the test file's rows, or
// the last `held_out_fraction` of each source.
struct TableSamples {
  std::unique_ptr<Dataset> samples = {};   // fields "features" [rows, features] and "labels" [rows]
  std::vector<SampleRange> training = {};  // of each source
  std::vector<Stream> streams = {};        // with data.weights
  Table table = {};                        // `values` are moved into the samples
  uint64_t digest = 0;                     // of features and labels
  int64_t features = 0, classes = 0;
};

TableSamples open_table(const DataOptions& data, double held_out_fraction, base::Log& log);

}  // namespace cairn::data
