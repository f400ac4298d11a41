// A selection of training samples, with weights.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "data/dataset.h"

namespace cairn::data {

// Training samples by id, with weights. Selectors map one subset to another, samplers draw from one. A value.
class Subset {
 public:
  Subset() = default;                    // every training sample of whatever data set
  Subset(int64_t first, int64_t count);  // consecutive ids
  // These ids in this order, without repeats. A weight for each, or none: all weigh 1.
  static Subset of(std::vector<int64_t> ids, std::vector<float> weights = {});

  // The same subset of these samples: "every" becomes their ids. Refuses an id outside of them.
  Subset within(const SampleRange& samples) const;

  // The ids that are among these samples, in the same order, with their weights. May be empty.
  Subset among(const SampleRange& samples) const;

  int64_t size() const { return ids_.empty() ? run_.count : static_cast<int64_t>(ids_.size()); }
  int64_t id(int64_t place) const { return ids_.empty() ? run_.first + place : ids_[static_cast<size_t>(place)]; }
  bool weighted() const { return !weights_.empty(); }
  float weight(int64_t id) const;  // of a sample in it
  // Equal for equal ids and weights, on every machine.
  uint64_t hash() const;

 private:
  bool every_ = true;
  SampleRange run_;
  std::vector<int64_t> ids_;
  std::unordered_map<int64_t, float> weights_;
};

}  // namespace cairn::data
