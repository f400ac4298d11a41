#include "data/batches.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "data/dataset.h"
#include "data/samples/document_starts.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

// Samplers that decide one epoch after the other have no batches but those of their epochs.
bool has_end(const Sampler& sampler) { return sampler.known() != std::numeric_limits<int64_t>::max(); }

}  // namespace

BatchSource::BatchSource(const Dataset& dataset, const Sampler& sampler, const Subset& subset, SampleShares shares, at::Device device)
    : dataset_(dataset), sampler_(sampler), subset_(subset), shares_(shares), device_(device) {}

std::vector<int64_t> BatchSource::ids(const BatchIndex& index) const { return sampler_.draw(index.batch()).ids; }

double BatchSource::progress(const BatchIndex& index) const {
  return sampler_.progress(has_end(sampler_) ? index.batch() : index.step - 1);
}

int64_t BatchSource::steps(int64_t batches_skipped) const { return sampler_.steps() - (has_end(sampler_) ? batches_skipped : 0); }

BatchCounts BatchSource::counts(const BatchIndex& index) const {
  Draw draw = sampler_.draw(index.batch());
  BatchCounts counts{.ids = std::move(draw.ids), .learning_rate_factor = draw.learning_rate_factor, .shape = draw.shape};
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
  const Draw draw = sampler_.draw(index.batch());
  CAIRN_CHECK(draw.weights.empty() || draw.weights.size() == draw.ids.size(), "{} weights of {} samples", draw.weights.size(),
              draw.ids.size());
  std::vector<int64_t> own_ids;
  std::vector<float> own_weights;
  for (const BatchRange& range : shares_.computed(static_cast<int64_t>(draw.ids.size())))
    for (auto i = static_cast<size_t>(range.first); i < static_cast<size_t>(range.first + range.count); ++i) {
      own_ids.push_back(draw.ids[i]);
      own_weights.push_back((draw.weights.empty() ? 1.0f : draw.weights[i]) * subset_.weight(draw.ids[i]));
    }
  mesh::Batch batch = filled(own_ids, draw.shape, index.batch());
  if (batch.weights.defined())  // of documents (data.subset)
    for (size_t i = 0; i < own_weights.size(); ++i) own_weights[i] *= batch.weights.const_data_ptr<float>()[i];
  if (batch.weights.defined() || subset_.weighted() || !draw.weights.empty()) {
    batch.weights = at::empty({static_cast<int64_t>(own_ids.size())}, at::kFloat);
    std::copy(own_weights.begin(), own_weights.end(), batch.weights.mutable_data_ptr<float>());
  }
  batch.progress = progress(index);
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

mesh::Batch BatchSource::filled(std::span<const int64_t> ids, const SampleShape& shape, int64_t step) const {
  mesh::Batch batch;
  shape == SampleShape{} ? dataset_.fill_training(ids, step, batch) : dataset_.fill_shaped(ids, shape, step, batch);
  batch.norm_samples = shape.norm_samples;
  if (device_.is_cuda()) add_document_starts(batch);
  return batch;
}

std::unique_ptr<Loader> BatchSource::load_ahead(const BatchIndex& from, int64_t end_step) const {
  const auto make_step = [this, skipped = from.batches_skipped](int64_t step) { return make({step, skipped}); };
  return std::make_unique<Loader>(make_step, from.step, end_step);
}

}  // namespace cairn::data
