// The data set of a study: samples of several sources, with labels where they have some.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/open.h"
#include "study/value_utility.h"

namespace cairn::base {
class Log;
}
namespace cairn::train {
struct Settings;
}

namespace cairn::study {

struct StudySamples {
  data::OpenedData opened;
  std::vector<data::SampleRange> sources;  // training samples of each
  std::vector<std::string> names;          // of the sources: their paths
  std::vector<int64_t> labels;             // of every sample; empty: samples have none
  int64_t samples() const { return opened.samples->training().count + opened.samples->held_out().count; }
};

// The same samples, with the same ids, that a run of these settings sees.
StudySamples open_study_samples(const train::Settings& settings, const std::filesystem::path& cache, base::Log& log);

// Features and labels of all samples of a table.
LabelledRows labelled_rows(const StudySamples& data);

std::vector<int64_t> ids_in(const data::SampleRange& range);

}  // namespace cairn::study
