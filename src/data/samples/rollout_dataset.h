// Sampled answers with advantages and log-probabilities as a data set, for training on a policy's own samples (GRPO).
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/samples/token_samples.h"
#include "data/tokenizer.h"

namespace cairn::data {

// One sample: a prompt and an answer in token ids, as the policy saw them.
struct Rollout {
  std::vector<int64_t> tokens;
  int64_t prompt = 0;                                               // the first so many tokens are no targets
  double advantage = 0;                                             // of the whole answer
  std::vector<float> old_log_probs = {}, reference_log_probs = {};  // of each token of the answer; empty: not given
};

struct DataOptions;

// Reads JSON lines such as
//   {"tokens": [5, 17, 4, 2], "prompt": 2, "advantage": 0.7, "log_probs": [-1.2, -0.1], "reference_log_probs": [-1.3, -0.2]}
// where the last two may be left out, on all lines or none. Refuses the first bad line, with file and number. `vocab`: token ids are below.
// `lines`: reads no more of them; 0: all.
std::vector<Rollout> read_rollouts(const std::filesystem::path& file, int64_t vocab, int64_t lines = 0);

// The tokenizer that the token ids are from. Refuses options that name none.
std::unique_ptr<Tokenizer> tokenizer_of_rollouts(const DataOptions& data);
// Refuses options that rollouts do not have, missing files, and files whose first line is bad.
void check_rollouts(const DataOptions& data);
// All files that the options name.
std::vector<Rollout> read_rollouts(const DataOptions& data, int64_t vocab);

// Samples longer than `length` + 1 tokens are truncated at their end; those without a target then are left out. Fields on the CPU: tokens,
// targets int64 [samples, longest], with kIgnoreIndex where there is no target; advantages float [samples]; old_log_probs and
// reference_log_probs float [samples, longest], 0 where there is no target, if they are given. The last `held_out_fraction` is held out.
class RolloutDataset final : public Dataset {
 public:
  RolloutDataset(std::vector<Rollout> rollouts, const SampleOptions& options, const std::string& origin);

  SampleRange training() const override { return {0, static_cast<int64_t>(rollouts_.size()) - held_out_}; }
  SampleRange held_out() const override { return {static_cast<int64_t>(rollouts_.size()) - held_out_, held_out_}; }
  int64_t left_out() const { return left_out_; }
  int64_t tokens_in(int64_t sample) const override;
  void fill(std::span<const int64_t> ids, mesh::Batch& batch) const override;

 private:
  const Rollout& at(int64_t sample) const { return rollouts_.at(static_cast<size_t>(sample)); }
  // Positions of a sample: one less than its tokens.
  int64_t positions(const Rollout& rollout) const;

  std::vector<Rollout> rollouts_;
  SampleOptions options_;
  int64_t held_out_ = 0;
  int64_t left_out_ = 0;
};

}  // namespace cairn::data
