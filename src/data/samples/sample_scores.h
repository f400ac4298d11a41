// The last loss of every sample.
#pragma once
#include <cstdint>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "data/sampler.h"

namespace cairn::data {

// A number per sample, by its place in a subset; NaN: it was not trained on yet.
class SampleScores {
 public:
  explicit SampleScores(const Subset& samples);

  int64_t size() const { return scores_.numel(); }
  // Losses that are not finite become the largest score so far, and are counted.
  void record(const SampleFeedback& found);
  int64_t not_finite() const { return *not_finite_.const_data_ptr<int64_t>(); }
  const float* data() const { return scores_.const_data_ptr<float>(); }

  const at::Tensor& scores() const { return scores_; }          // float [size]
  const at::Tensor& bad_losses() const { return not_finite_; }  // int64 [1]: how many were not finite

 private:
  int64_t place_of(int64_t id) const;

  at::Tensor scores_, not_finite_;
  int64_t first_ = 0;                            // id of place 0 where ids are consecutive
  std::unordered_map<int64_t, int64_t> places_;  // by id; empty where ids are consecutive
};

}  // namespace cairn::data
