// A tokenised corpus seen as samples: windows of equal length, the last of them held out from training.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "mesh/batch.h"

namespace cairn::data {

struct WindowOptions {
  int64_t length = 128;            // tokens that a model reads of one sample
  double held_out_fraction = 0.0;  // of the samples, at the end of the corpus; more than 0 holds out one sample at least
  int32_t padding = 0;             // the id that fills up the last window
};

// Target of a position that is not counted.
inline constexpr int64_t kNoTarget = -100;

// Sample i reads tokens [i*length, (i+1)*length) and is asked for the token after each, so every token but the first is a target
// exactly once. The last sample may be shorter: it is padded, and its padding is not counted. Sample ids count windows over the
// whole corpus, so they stay the same whatever part is held out.
class TokenSet final : public Dataset {
 public:
  // Refused with `origin` named: a corpus too small for one whole window (and one more where some are held out).
  TokenSet(std::vector<int32_t> tokens, const WindowOptions& options, const std::string& origin);

  int64_t length() const { return options_.length; }
  int64_t samples() const { return samples_; }
  Samples training() const override { return {0, samples_ - held_out_}; }
  Samples held_out() const override { return {samples_ - held_out_, held_out_}; }
  std::span<const int32_t> tokens() const { return tokens_; }

  // Targets counted in one sample: `length`, or fewer in the last.
  int64_t tokens_in(int64_t sample) const override;

  // Sets ids and the fields `tokens` and `targets`, int64 [samples, length] on the CPU; samples all weigh 1. No ids: an empty batch.
  void fill(std::span<const int64_t> ids, mesh::Batch& batch) const override;

 private:
  std::vector<int32_t> tokens_;
  WindowOptions options_;
  int64_t samples_ = 0;
  int64_t held_out_ = 0;
};

}  // namespace cairn::data
