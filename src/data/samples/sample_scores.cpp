#include "data/samples/sample_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

constexpr float kUnseen = std::numeric_limits<float>::quiet_NaN();

bool are_consecutive(const Subset& samples) {
  for (int64_t place = 0; place < samples.size(); ++place)
    if (samples.id(place) != samples.id(0) + place) return false;
  return true;
}

}  // namespace

SampleScores::SampleScores(const Subset& samples)
    : scores_(at::full({samples.size()}, kUnseen, at::kFloat)), not_finite_(at::zeros({1}, at::kLong)) {
  if (are_consecutive(samples)) {
    first_ = samples.size() > 0 ? samples.id(0) : 0;
    return;
  }
  for (int64_t place = 0; place < samples.size(); ++place) places_[samples.id(place)] = place;
}

int64_t SampleScores::place_of(int64_t id) const {
  if (places_.empty()) {
    CAIRN_CHECK(id >= first_ && id < first_ + size(), "a loss of sample {}, which is not among {} to {}", id, first_, first_ + size() - 1);
    return id - first_;
  }
  const auto found = places_.find(id);
  CAIRN_CHECK(found != places_.end(), "a loss of sample {}, which was not drawn from", id);
  return found->second;
}

void SampleScores::record(const SampleFeedback& found) {
  CAIRN_CHECK(found.ids.size() == found.losses.size(), "{} losses of {} samples", found.losses.size(), found.ids.size());
  float* const scores = scores_.mutable_data_ptr<float>();
  std::vector<int64_t> not_finite;
  for (size_t i = 0; i < found.ids.size(); ++i) {
    const int64_t place = place_of(found.ids[i]);
    if (std::isfinite(found.losses[i]))
      scores[place] = found.losses[i];
    else
      not_finite.push_back(place);
  }
  if (not_finite.empty()) return;
  *not_finite_.mutable_data_ptr<int64_t>() += static_cast<int64_t>(not_finite.size());
  float largest = kUnseen;
  for (int64_t place = 0; place < size(); ++place)
    if (!std::isnan(scores[place]) && !(scores[place] <= largest)) largest = scores[place];
  for (const int64_t place : not_finite) scores[place] = largest;
}

}  // namespace cairn::data
