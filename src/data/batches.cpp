#include "data/batches.h"

#include "data/dataset.h"
#include "data/samples/document_starts.h"
#include "kernels/aten.h"

namespace cairn::data {

BatchSource::BatchSource(const Dataset& dataset, const Sampler& sampler, const Subset& subset, SampleShares shares, at::Device device)
    : dataset_(dataset), sampler_(sampler), subset_(subset), shares_(shares), device_(device) {}

std::vector<int64_t> BatchSource::ids(const BatchIndex& index) const { return sampler_.ids(index.batch()); }

BatchCounts BatchSource::counts(const BatchIndex& index) const {
  BatchCounts counts{.ids = ids(index)};
  const auto samples = static_cast<int64_t>(counts.ids.size());
  const BatchRange group = shares_.of_step_group(samples);
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t tokens = dataset_.tokens_in(counts.ids[static_cast<size_t>(i)]);
    counts.tokens += tokens;
    if (i >= group.first && i < group.first + group.count) counts.step_group_tokens += tokens;
  }
  counts.step_group_samples = group.count;
  counts.max_local_samples = shares_.max_local_samples(samples);
  return counts;
}

mesh::Batch BatchSource::make(const BatchIndex& index) const {
  const std::vector<int64_t> all = ids(index);
  std::vector<int64_t> own_ids;
  for (const BatchRange& range : shares_.computed(static_cast<int64_t>(all.size())))
    own_ids.insert(own_ids.end(), all.begin() + range.first, all.begin() + range.first + range.count);
  mesh::Batch batch = fill(own_ids);
  if (subset_.weighted()) {
    batch.weights = at::empty({static_cast<int64_t>(own_ids.size())}, at::kFloat);
    for (size_t i = 0; i < own_ids.size(); ++i) batch.weights.mutable_data_ptr<float>()[i] = subset_.weight(own_ids[i]);
  }
  batch.progress = sampler_.progress(index.step - 1);
  if (!device_.is_cuda()) return batch;
  batch.ids = batch.ids.pin_memory();
  if (batch.weights.defined()) batch.weights = batch.weights.pin_memory();
  for (auto& [name, field] : batch.fields) field.tensor = field.tensor.pin_memory();
  return batch;
}

mesh::Batch BatchSource::fill(std::span<const int64_t> ids) const {
  mesh::Batch batch;
  dataset_.fill(ids, batch);
  if (device_.is_cuda()) add_document_starts(batch);
  return batch;
}

std::unique_ptr<Loader> BatchSource::load_ahead(const BatchIndex& from, int64_t end_step) const {
  const auto make_step = [this, skipped = from.batches_skipped](int64_t step) { return make({step, skipped}); };
  return std::make_unique<Loader>(make_step, from.step, end_step);
}

}  // namespace cairn::data
