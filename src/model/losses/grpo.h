#pragma once
#include <memory>

#include "model/objective.h"

namespace cairn::model {

struct GrpoOptions {
  // What the objective is divided by:
  //   sequence  each sequence by its number of targets, then the mean over sequences (GRPO, arXiv:2402.03300)
  //   tokens    all targets of the step together (BNPO, DAPO)
  //   length    sequences times the full length (Dr. GRPO, arXiv:2503.20783)
  enum class Normalisation { sequence, tokens, length };
  Normalisation normalisation = Normalisation::sequence;
  double clip_low = 0.2, clip_high = 0.2;  // how far the ratio of probabilities may move down and up
  double beta = 0;                         // weight of the KL divergence from the reference model
  double temperature = 1;                  // at which the sequences were sampled
  int64_t length = 0;                      // Normalisation::length: tokens of a full sequence
};

// Group relative policy optimization over log-probabilities that the data give. With p the probability of a target, and by target the
// fields "old_log_probs" (of the policy that sampled) and "reference_log_probs" (where beta > 0), [samples, length] each, and by sample the
// field "advantages" [samples]:
//   ratio r = p / p_old,  objective l = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + beta (p_ref / p - log(p_ref / p) - 1)
// Targets that are ignored count nothing. Without "old_log_probs" the policy is the one that sampled: r = 1, with its gradient. The loss
// is a sum over sequences (sequence, length), counted in sequences, or over targets (tokens), counted in targets; the trainer divides by
// the count of the whole step. Metrics: clip_fraction and approximate_kl (of p_old against p, r - 1 - log r), by target.
std::unique_ptr<Objective> make_grpo(const GrpoOptions& options);

}  // namespace cairn::model
