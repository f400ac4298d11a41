#include "study/study_samples.h"

#include <numeric>

#include "kernels/aten.h"
#include "train/settings.h"

namespace cairn::study {

std::vector<int64_t> ids_in(const data::SampleRange& range) {
  std::vector<int64_t> ids(static_cast<size_t>(range.count));
  std::iota(ids.begin(), ids.end(), range.first);
  return ids;
}

StudySamples open_study_samples(const train::Settings& settings, const std::filesystem::path& cache, base::Log& log) {
  data::DataOptions options = settings.data;
  options.weights.assign(options.sources.size(), 1.0);  // so that the samples of each source are known
  StudySamples found{.opened = data::open_data(options, {.held_out_fraction = settings.eval.fraction, .cache_folder = cache.string()}, log),
                     .sources = {},
                     .names = {},
                     .labels = {}};
  for (const data::Stream& one : found.opened.streams) found.sources.push_back(one.samples);
  if (found.sources.empty()) found.sources.push_back(found.opened.samples->training());
  found.names = options.sources.empty() ? std::vector<std::string>{found.opened.origin} : options.sources;
  if (found.opened.classes > 0)
    for (int64_t i = 0; i < found.samples(); ++i) found.labels.push_back(found.opened.samples->label_of(i));
  return found;
}

LabelledRows labelled_rows(const StudySamples& data) {
  mesh::Batch batch;
  const std::vector<int64_t> ids = ids_in({0, data.samples()});
  data.opened.samples->fill(ids, batch);
  const at::Tensor features = batch.field("features").to(at::kDouble).contiguous();
  const double* const values = features.const_data_ptr<double>();
  return {.features = data.opened.features,
          .classes = data.opened.classes,
          .values = {values, values + features.numel()},
          .labels = data.labels};
}

}  // namespace cairn::study
