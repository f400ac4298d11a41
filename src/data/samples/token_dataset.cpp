#include "data/samples/token_dataset.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::data {

TokenDataset::TokenDataset(std::vector<std::unique_ptr<TokenSamples>> sources, int64_t length)
    : sources_(std::move(sources)), length_(length), training_firsts_{0} {
  CAIRN_CHECK(!sources_.empty(), "a token set without sources");
  separates_ = sources_[0]->separates();
  ragged_ = sources_[0]->count() > 0 && sources_[0]->length_of(0) > 0;
  weighted_ = std::ranges::any_of(sources_, [](const auto& source) { return source->weighted(); });
  for (const auto& source : sources_) training_firsts_.push_back(training_firsts_.back() + source->count() - source->held_out());
  held_firsts_.push_back(training_firsts_.back());
  for (const auto& source : sources_) held_firsts_.push_back(held_firsts_.back() + source->held_out());
}

SampleRange TokenDataset::training_of(int64_t source) const {
  const auto at = static_cast<size_t>(source);
  return {training_firsts_[at], training_firsts_[at + 1] - training_firsts_[at]};
}

TokenDataset::Place TokenDataset::place(int64_t id) const {
  CAIRN_CHECK(id >= 0 && id < samples(), "sample {} of {}", id, samples());
  const bool held = id >= training_firsts_.back();
  const std::vector<int64_t>& firsts = held ? held_firsts_ : training_firsts_;
  const auto source = static_cast<size_t>(std::upper_bound(firsts.begin(), firsts.end(), id) - firsts.begin()) - 1;
  const TokenSamples& samples = *sources_[source];
  return {&samples, id - firsts[source] + (held ? samples.count() - samples.held_out() : 0)};
}

int64_t TokenDataset::tokens_in(int64_t sample) const {
  const Place at = place(sample);
  return at.samples->targets_in(at.sample);
}

int64_t TokenDataset::length_of(int64_t sample) const {
  const Place at = place(sample);
  return at.samples->length_of(at.sample);
}

void TokenDataset::fill_ragged(std::span<const int64_t> ids, mesh::Batch& batch) const {
  at::Tensor lengths = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
  int64_t tokens = 0;
  for (size_t i = 0; i < ids.size(); ++i) tokens += lengths.data_ptr<int64_t>()[i] = length_of(ids[i]);
  const auto add = [&](const char* name) {
    at::Tensor tensor = at::empty({tokens}, at::kLong);
    auto* const begin = tensor.data_ptr<int64_t>();
    batch.fields[name] = {std::move(tensor), mesh::Field::Shape::ragged};
    return begin;
  };
  SampleBuffers into{.tokens = add("tokens"), .targets = add("targets")};
  for (const int64_t id : ids) {
    const Place at = place(id);
    at.samples->fill(at.sample, into);
    into.tokens += at.samples->length_of(at.sample);
    into.targets += at.samples->length_of(at.sample);
  }
  batch.fields["lengths"] = {std::move(lengths), mesh::Field::Shape::per_sample};
}

void TokenDataset::fill(std::span<const int64_t> ids, mesh::Batch& batch) const {
  const auto samples = static_cast<int64_t>(ids.size());
  batch.ids = at::empty({samples}, at::kLong);
  std::copy(ids.begin(), ids.end(), batch.ids.data_ptr<int64_t>());
  batch.weights = at::Tensor();
  if (weighted_ && std::ranges::any_of(ids, [this](int64_t id) { return id < training_firsts_.back(); })) {
    batch.weights = at::empty({samples}, at::kFloat);
    for (size_t i = 0; i < ids.size(); ++i) {
      const Place at = place(ids[i]);
      batch.weights.mutable_data_ptr<float>()[i] = at.samples->weight_of(at.sample);
    }
  }
  if (ragged_) return fill_ragged(ids, batch);
  const auto add = [&](const char* name) {
    at::Tensor tensor = at::empty({samples, length_}, at::kLong);
    auto* const begin = tensor.data_ptr<int64_t>();
    batch.fields[name] = {std::move(tensor), mesh::Field::Shape::per_sample};
    return begin;
  };
  SampleBuffers into{.tokens = add("tokens"), .targets = add("targets")};
  if (separates_) {
    into.documents = add("documents");
    into.positions = add("positions");
  }
  for (const int64_t id : ids) {
    const Place at = place(id);
    at.samples->fill(at.sample, into);
    into.tokens += length_;
    into.targets += length_;
    if (!separates_) continue;
    into.documents += length_;
    into.positions += length_;
  }
}

}  // namespace cairn::data
