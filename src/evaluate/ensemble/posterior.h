// Which of several experts a text is for, judged by how well each foresaw what has been read of it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn::evaluate {

// How experts are weighed.
struct MixtureOptions {
  std::vector<double> prior = {};  // of each expert; any unit, none negative
  bool average = false;            // what is read changes nothing: the mean of the experts' probabilities, weighed by the prior
  int64_t top_k = 0;               // only so many experts, those that were likeliest at the last refresh; 0: all
  int64_t refresh = 32;            // tokens from one refresh to the next
};

// Refuses a prior for another number of experts, or of which nothing is left, and more experts than there are.
void check(const MixtureOptions& options, int64_t experts);

// log pi of each expert: they sum to 1.
std::vector<double> log_prior(const MixtureOptions& options);

// Takes logs; gives their softmax as logs. What is minus infinity stays so.
std::vector<double> log_normalised(std::span<const double> logs);

// log q of each expert from log w at the last refresh and now: minus infinity for those that are left out.
std::vector<double> log_weights(const MixtureOptions& options, std::span<const double> at_refresh, std::span<const double> now);

// The weights of one sequence as it grows: log w_j(t) = log pi_j + the sum of log p_j(x_u) over the tokens u < t. The token that is about
// to come is never in its own sum.
class Posterior {
 public:
  explicit Posterior(MixtureOptions options);
  // Of each expert for the next token, as logs.
  const std::vector<double>& log_q() const { return log_q_; }
  // log of the mixture's probability for a token that each expert gives log_p.
  double mixed(std::span<const double> log_p) const;
  // The token came: what each expert had given it.
  void read(std::span<const double> log_p);

 private:
  MixtureOptions options_;
  int64_t read_ = 0;
  std::vector<double> log_w_, at_refresh_, log_q_;
};

// A sequence that is known whole. `log_p[j][t]`: of token t under expert j.
struct Mixed {
  std::vector<double> log_p;               // of each token under the mixture
  std::vector<std::vector<double>> log_q;  // [token][expert]: the weights that it was judged with
  std::vector<double> log_q_end;           // those after the last token
};
Mixed mix(const MixtureOptions& options, const std::vector<std::vector<double>>& log_p);

// The prior of a domain from sequences of it that are used for nothing else. For each: post = softmax(log pi + sum of log p), then
// pi = decay pi + post, normalised, so that earlier sequences fade out slowly. `by_power`: pi = decay^i pi + post for sequence i from 1 on,
// as the published code has it, which after a few sequences is the last posterior alone.
class CachedPrior {
 public:
  CachedPrior(int64_t experts, double decay, bool by_power = false);
  // Sums of log p over a sequence, one for each expert.
  void add(std::span<const double> log_p);
  const std::vector<double>& prior() const { return prior_; }

 private:
  double decay_;
  bool by_power_;
  int64_t added_ = 0;
  std::vector<double> prior_;
};

}  // namespace cairn::evaluate
