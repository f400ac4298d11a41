// Preference pairs as a data set: each sample is a prompt with a chosen and a rejected answer (DPO).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/corpus/token_stream.h"
#include "data/dataset.h"
#include "data/samples/token_samples.h"

namespace cairn::data {

// Documents 2i and 2i + 1 of the stream are the chosen and rejected side of pair i. A side longer than `length` is truncated at its end.
// Pairs in which a side then has no target are left out. Fields chosen_tokens, chosen_targets, rejected_tokens, rejected_targets: int64
// [samples, longest] on the CPU, as long as the longest side of the batch, filled up with `padding` and kIgnoreIndex. The last
// `held_out_fraction` of the pairs is held out.
class PreferenceDataset final : public Dataset {
 public:
  // Refused with `origin` named: too few pairs.
  PreferenceDataset(std::shared_ptr<const TokenStream> stream, const SampleOptions& options, const std::string& origin);

  SampleRange training() const override { return {0, static_cast<int64_t>(pairs_.size()) - held_out_}; }
  SampleRange held_out() const override { return {static_cast<int64_t>(pairs_.size()) - held_out_, held_out_}; }
  int64_t left_out() const { return left_out_; }
  // Of both sides together.
  int64_t tokens_in(int64_t sample) const override;
  void fill(std::span<const int64_t> ids, mesh::Batch& batch) const override;

 private:
  struct Side {
    int64_t begin, reads;
  };
  Side side(int64_t document) const;

  std::shared_ptr<const TokenStream> stream_;
  SampleOptions options_;
  std::vector<int64_t> pairs_;  // the first document of each that is used
  int64_t held_out_ = 0;
  int64_t left_out_ = 0;
};

}  // namespace cairn::data
