#include "data/samples/preference_dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::data {

PreferenceDataset::PreferenceDataset(std::shared_ptr<const TokenStream> stream, const SampleOptions& options, const std::string& origin)
    : stream_(std::move(stream)), options_(options) {
  if (stream_->documents() % 2 != 0)
    base::fail_input("{}: {} documents are no pairs; data.kind = preference needs records with \"chosen\" and \"rejected\"", origin,
                     stream_->documents());
  for (int64_t document = 0; document < stream_->documents(); document += 2) {
    const auto asked = [&](int64_t of) {
      const Side at = side(of);
      return stream_->targets_in(at.begin + 1, at.reads) > 0;
    };
    if (asked(document) && asked(document + 1))
      pairs_.push_back(document);
    else
      ++left_out_;
  }
  const auto count = static_cast<int64_t>(pairs_.size());
  const int64_t needed = options_.held_out_fraction > 0 ? 2 : 1;
  if (count < needed)
    base::fail_input("{}: {} of {} pairs can be used, {} or more are needed; give more of them, or a data.length that holds the prompts",
                     origin, count, stream_->documents() / 2, needed);
  if (needed == 2) held_out_ = std::clamp<int64_t>(std::llround(options_.held_out_fraction * static_cast<double>(count)), 1, count - 1);
}

PreferenceDataset::Side PreferenceDataset::side(int64_t document) const {
  const int64_t begin = stream_->document_begin(document);
  return {begin, std::min(options_.length, stream_->document_begin(document + 1) - 1 - begin)};
}

int64_t PreferenceDataset::tokens_in(int64_t sample) const {
  CAIRN_CHECK(sample >= 0 && sample < static_cast<int64_t>(pairs_.size()), "sample {} of {}", sample, pairs_.size());
  int64_t targets = 0;
  for (const int64_t other : {0, 1}) {
    const Side at = side(pairs_[static_cast<size_t>(sample)] + other);
    targets += stream_->targets_in(at.begin + 1, at.reads);
  }
  return targets;
}

void PreferenceDataset::fill(std::span<const int64_t> ids, mesh::Batch& batch) const {
  const auto samples = static_cast<int64_t>(ids.size());
  int64_t length = 0;
  for (const int64_t id : ids)
    for (const int64_t other : {0, 1}) length = std::max(length, side(pairs_.at(static_cast<size_t>(id)) + other).reads);
  batch.ids = at::empty({samples}, at::kLong);
  std::copy(ids.begin(), ids.end(), batch.ids.data_ptr<int64_t>());
  batch.weights = at::Tensor();
  for (const int64_t other : {0, 1}) {
    const std::string name = other == 0 ? "chosen" : "rejected";
    at::Tensor tokens = at::full({samples, length}, options_.padding, at::kLong);
    at::Tensor targets = at::full({samples, length}, kIgnoreIndex, at::kLong);
    for (int64_t i = 0; i < samples; ++i) {
      const Side at = side(pairs_.at(static_cast<size_t>(ids[static_cast<size_t>(i)])) + other);
      stream_->copy(at.begin, at.reads, tokens.data_ptr<int64_t>() + i * length);
      stream_->copy(at.begin + 1, at.reads, targets.data_ptr<int64_t>() + i * length);
      stream_->mask_non_targets(at.begin + 1, at.reads, targets.data_ptr<int64_t>() + i * length);
    }
    batch.fields[name + "_tokens"] = {std::move(tokens), mesh::Field::Shape::per_sample};
    batch.fields[name + "_targets"] = {std::move(targets), mesh::Field::Shape::per_sample};
  }
}

}  // namespace cairn::data
