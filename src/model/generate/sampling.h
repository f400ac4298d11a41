#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cairn::model {

// How the next token is chosen from logits. The steps, their meaning and their order are those of `transformers`: repetition penalty,
// temperature, top-k, top-p, min-p. Greedy (temperature 0) takes the likeliest after the repetition penalty.
struct SamplingOptions {
  double temperature = 0.8;       // logits are divided by it; 0: always the likeliest
  int64_t top_k = 40;             // only so many of the likeliest, and what ties with the last of them; 0: all
  double top_p = 1;               // only the likeliest that together reach this; 1: all
  double min_p = 0;               // only what has at least this part of the likeliest one's probability; 0: all
  double repetition_penalty = 1;  // logits of what prompt and answer hold are divided by it where positive, multiplied where negative
  bool operator==(const SamplingOptions&) const = default;
};

// Refuses what has no meaning, naming the option as the command line does.
void check(const SamplingOptions& options);

// Chooses tokens. Keeps its scratch, so one serves one thread.
class TokenSampler {
 public:
  explicit TokenSampler(const SamplingOptions& options) : options_(options) {}

  struct SampledToken {
    int32_t id = 0;
    float log_probability = 0;  // under the model's own distribution: the softmax of the logits as they came
  };
  // `seen`: prompt and answer so far. `uniform` in [0, 1) decides; the same number gives the same token.
  SampledToken sample(std::span<const float> logits, std::span<const int32_t> seen, double uniform);

  // What is left to draw from, by id, with the probability of each; they sum to 1.
  using Candidates = std::vector<std::pair<int32_t, double>>;
  const Candidates& candidates(std::span<const float> logits, std::span<const int32_t> seen);

 private:
  std::span<const float> penalized(std::span<const float> logits, std::span<const int32_t> seen);
  void keep_top_k(std::span<const float> logits);
  void keep_top_p();
  void keep_min_p();
  void normalize();

  SamplingOptions options_;
  std::vector<float> scores_;
  std::vector<char> met_;
  Candidates candidates_;
};

}  // namespace cairn::model
