#include "data/token_set.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::data {

TokenSet::TokenSet(std::vector<int32_t> tokens, const WindowOptions& options, const std::string& origin)
    : tokens_(std::move(tokens)), options_(options) {
  const double fraction = options_.held_out_fraction;
  CAIRN_CHECK(options_.length >= 1 && fraction >= 0 && fraction < 1, "length {}, held-out fraction {}", options_.length, fraction);
  const auto count = static_cast<int64_t>(tokens_.size());
  const int64_t windows = fraction > 0 ? 2 : 1;
  const int64_t needed = windows * options_.length + 1;
  if (count < needed) {
    base::fail_input("{}: {} tokens are too few; {} of data.length = {} needs {}: give more text or set data.length to {} or less", origin,
                     count, windows == 2 ? "a training sample and a held-out sample" : "one sample", options_.length, needed,
                     std::max<int64_t>((count - 1) / windows, 1));
  }
  samples_ = (count - 1 + options_.length - 1) / options_.length;
  if (fraction > 0) held_out_ = std::clamp<int64_t>(std::llround(fraction * static_cast<double>(samples_)), 1, samples_ - 1);
}

int64_t TokenSet::tokens_in(int64_t sample) const {
  CAIRN_CHECK(sample >= 0 && sample < samples_, "sample {} of {}", sample, samples_);
  return std::min(options_.length, static_cast<int64_t>(tokens_.size()) - 1 - sample * options_.length);
}

void TokenSet::fill(std::span<const int64_t> ids, mesh::Batch& batch) const {
  const auto samples = static_cast<int64_t>(ids.size());
  const int64_t length = options_.length;
  batch.ids = at::empty({samples}, at::kLong);
  at::Tensor tokens = at::empty({samples, length}, at::kLong);
  at::Tensor targets = at::empty({samples, length}, at::kLong);
  std::copy(ids.begin(), ids.end(), batch.ids.data_ptr<int64_t>());
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t counted = tokens_in(ids[i]);
    const int32_t* from = tokens_.data() + ids[i] * length;
    int64_t* token = tokens.data_ptr<int64_t>() + i * length;
    int64_t* target = targets.data_ptr<int64_t>() + i * length;
    std::copy_n(from, counted, token);
    std::copy_n(from + 1, counted, target);
    std::fill(token + counted, token + length, options_.padding);
    std::fill(target + counted, target + length, kNoTarget);
  }
  batch.weights = at::Tensor();
  batch.fields["tokens"] = {std::move(tokens), mesh::Field::Shape::per_sample};
  batch.fields["targets"] = {std::move(targets), mesh::Field::Shape::per_sample};
}

}  // namespace cairn::data
