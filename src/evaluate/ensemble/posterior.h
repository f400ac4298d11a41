// The posterior over experts given a text: Bayes' rule with each expert's likelihood of the tokens so far.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn::evaluate {

// How experts are weighted.
struct MixtureOptions {
  std::vector<double> prior = {};  // one weight per expert, not negative, any scale
  bool average = false;            // ignore the text: average the experts' probabilities by the prior
  bool of_logs = false;            // with `average`: the mean of log probabilities, normalised again, in the place of that
  int64_t top_k = 0;               // use only this many experts, the most probable at the last refresh; 0: all
  int64_t refresh = 32;            // tokens between refreshes of that selection
};

// Refuses a prior of the wrong length or of zeros, and a top_k above the number of experts.
void check(const MixtureOptions& options, int64_t experts);

// log pi of each expert: they sum to 1.
std::vector<double> log_prior(const MixtureOptions& options);

// Log-softmax. Minus infinity stays.
std::vector<double> log_normalised(std::span<const double> logs);

// log q of each expert from log w at the last refresh and now; minus infinity for experts outside the top k.
std::vector<double> log_weights(const MixtureOptions& options, std::span<const double> at_refresh, std::span<const double> now);

// The weights of one sequence as it grows: log w_j(t) = log pi_j + sum_{u < t} log p_j(x_u), q = softmax(log w). The next token is never
// part of its own sum.
class Posterior {
 public:
  explicit Posterior(MixtureOptions options);
  // log q of each expert for the next token.
  const std::vector<double>& log_q() const { return log_q_; }
  // The mixture's log probability of a token to which expert j gives log_p[j].
  double mixed(std::span<const double> log_p) const;
  // Appends a token: the log probability that each expert gave it.
  void read(std::span<const double> log_p);

 private:
  MixtureOptions options_;
  int64_t read_ = 0;
  std::vector<double> log_w_, at_refresh_, log_q_;
};

// The mixture over a whole known sequence. `log_p[j][t]`: log probability of token t under expert j.
struct Mixed {
  std::vector<double> log_p;               // of each token under the mixture
  std::vector<std::vector<double>> log_q;  // [token][expert]: the weights used for it
  std::vector<double> log_q_end;           // the weights after the last token
};
Mixed mix(const MixtureOptions& options, const std::vector<std::vector<double>>& log_p);

// The cached prior of a domain, estimated from held-out sequences of it. For each sequence: post = softmax(log pi + sum of log p), then
// pi = normalise(decay pi + post), so that earlier sequences fade slowly. `by_power`: pi = normalise(decay^i pi + post) for sequence i from
// 1 on, as in the published code; after a few sequences that is the last posterior alone.
class CachedPrior {
 public:
  CachedPrior(int64_t experts, double decay, bool by_power = false);
  // The summed log probability of a sequence under each expert.
  void add(std::span<const double> log_p);
  const std::vector<double>& prior() const { return prior_; }

 private:
  double decay_;
  bool by_power_;
  int64_t added_ = 0;
  std::vector<double> prior_;
};

}  // namespace cairn::evaluate
