// Tokenized text as a data set: the samples of one or several sources.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/samples/token_samples.h"

namespace cairn::data {

// Sample ids number the training samples of all sources in order, then the held-out samples of all sources. A batch has the
// fields `tokens` and `targets`, and `documents` and `positions` where attention and loss stay within documents: int64
// [samples, length] on the CPU. Where samples have lengths of their own (packing = sequences): ragged `tokens` and `targets`, int64
// [sum of lengths], one sample after the other, and `lengths`, int64 [samples].
class TokenDataset final : public Dataset {
 public:
  // All sources have the same packing and length.
  TokenDataset(std::vector<std::unique_ptr<TokenSamples>> sources, int64_t length);

  int64_t length() const { return length_; }
  int64_t samples() const { return held_firsts_.back(); }
  SampleRange training() const override { return {0, training_firsts_.back()}; }
  SampleRange held_out() const override { return {training_firsts_.back(), held_firsts_.back() - training_firsts_.back()}; }
  // The training samples of one source.
  SampleRange training_of(int64_t source) const;

  // Whether samples have weights; fill() then sets those of training samples, and 1 for the others.
  bool weighted() const { return weighted_; }
  int64_t tokens_in(int64_t sample) const override;
  int64_t length_of(int64_t sample) const override;
  void fill(std::span<const int64_t> ids, mesh::Batch& batch) const override;

 private:
  struct Place {
    const TokenSamples* samples;
    int64_t sample;
  };
  Place place(int64_t id) const;
  void fill_ragged(std::span<const int64_t> ids, mesh::Batch& batch) const;

  std::vector<std::unique_ptr<TokenSamples>> sources_;
  int64_t length_;
  bool separates_ = false;
  bool weighted_ = false;
  bool ragged_ = false;  // samples have lengths of their own
  std::vector<int64_t> training_firsts_;  // ids of each source, and the end
  std::vector<int64_t> held_firsts_;
};

}  // namespace cairn::data
