#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cairn::model {

// How the next token is sampled. The steps and their order are those of `transformers`: repetition penalty, temperature, top-k, top-p,
// min-p. Temperature 0 is greedy: the most likely token after the repetition penalty.
struct SamplingOptions {
  double temperature = 0.8;       // divides the logits; 0: greedy
  int64_t top_k = 40;             // keeps the k most likely tokens, and ties with the last of them; 0: all
  double top_p = 1;               // keeps the most likely tokens that together reach this probability; 1: all
  double min_p = 0;               // keeps tokens with at least this fraction of the highest probability; 0: all
  double repetition_penalty = 1;  // for tokens of prompt and answer: divides positive logits, multiplies negative ones
  bool operator==(const SamplingOptions&) const = default;
};

// Refuses values out of range. Messages name the option of the command line.
void check(const SamplingOptions& options);

// Samples tokens. Holds scratch memory, so it serves one thread.
class TokenSampler {
 public:
  // Ids from `vocab` on are never sampled; 0: all may be. Vocabularies of models are often padded beyond those of their tokenizers.
  explicit TokenSampler(const SamplingOptions& options, int64_t vocab = 0) : options_(options), vocab_(vocab) {}

  struct SampledToken {
    int32_t id = 0;
    float log_probability = 0;  // under the softmax of the unmodified logits
  };
  // `seen`: prompt and answer so far. `uniform` in [0, 1) determines the token.
  SampledToken sample(std::span<const float> logits, std::span<const int32_t> seen, double uniform);

  // The tokens that remain after all cuts, by id, with their probabilities, which sum to 1.
  using Candidates = std::vector<std::pair<int32_t, double>>;
  const Candidates& candidates(std::span<const float> logits, std::span<const int32_t> seen);

 private:
  std::span<const float> penalized(std::span<const float> logits, std::span<const int32_t> seen);
  void keep_top_k(std::span<const float> logits);
  void keep_top_p();
  void keep_min_p();
  void normalize();

  std::span<const float> allowed(std::span<const float> logits) const;

  SamplingOptions options_;
  int64_t vocab_;
  std::vector<float> scores_;
  std::vector<char> met_;
  Candidates candidates_;
};

}  // namespace cairn::model
