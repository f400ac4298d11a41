#include "data/subset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace cairn::data {

Subset::Subset(int64_t first, int64_t count) : every_(false), run_{first, count} {
  CAIRN_CHECK(count >= 0, "a subset of {} samples", count);
}

Subset Subset::of(std::vector<int64_t> ids, std::vector<float> weights) {
  if (!weights.empty() && weights.size() != ids.size())
    base::fail_input("a subset of {} samples has {} weights: give one for each, or none", ids.size(), weights.size());
  Subset subset(0, 0);
  std::unordered_set<int64_t> seen;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!seen.insert(ids[i]).second) base::fail_input("a subset holds sample {} twice: give it a weight of 2 instead", ids[i]);
    if (weights.empty()) continue;
    if (!std::isfinite(weights[i]) || weights[i] < 0)
      base::fail_input("sample {} of a subset weighs {}: a weight is a number from 0 on", ids[i], weights[i]);
    subset.weights_[ids[i]] = weights[i];
  }
  subset.ids_ = std::move(ids);
  return subset;
}

Subset Subset::within(const SampleRange& samples) const {
  if (every_) return Subset(samples.first, samples.count);
  for (int64_t place = 0; place < size(); ++place) {
    if (id(place) < samples.first || id(place) >= samples.first + samples.count) {
      base::fail_input("a subset holds sample {}: the training samples are {} to {}", id(place), samples.first,
                       samples.first + samples.count - 1);
    }
  }
  if (size() == 0) base::fail_input("a subset without samples: nothing could be trained on");
  return *this;
}

Subset Subset::among(const SampleRange& samples) const {
  const int64_t end = samples.first + samples.count;
  if (ids_.empty()) {
    const int64_t first = std::max(run_.first, samples.first);
    return Subset(first, std::max<int64_t>(std::min(run_.first + run_.count, end) - first, 0));
  }
  Subset part(0, 0);
  for (const int64_t id : ids_)
    if (id >= samples.first && id < end) part.ids_.push_back(id);
  part.weights_ = weights_;
  return part;
}

float Subset::weight(int64_t id) const {
  const auto found = weights_.find(id);
  return found == weights_.end() ? 1.0f : found->second;
}

uint64_t Subset::hash() const {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto mix = [&hash](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (value >> (8 * byte) & 0xff)) * 0x100000001b3;
  };
  for (int64_t place = 0; place < size(); ++place) {
    mix(static_cast<uint64_t>(id(place)));
    mix(std::bit_cast<uint32_t>(weight(id(place))));
  }
  return hash;
}

}  // namespace cairn::data
