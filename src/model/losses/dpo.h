#pragma once
#include <memory>

#include "model/objective.h"

namespace cairn::model {

struct DpoOptions {
  double beta = 0.1;           // strength of the pull towards the reference model
  double label_smoothing = 0;  // assumed fraction of pairs with swapped labels
};

// Direct preference optimization (arXiv:2305.18290, equation 7; smoothed: arXiv:2310.12036's cDPO). A sample is a pair of answers to one
// prompt: rows 2i and 2i + 1 of value "logits" [2 pairs, length, vocab] and field "targets" [2 pairs, length] are the chosen and the
// rejected answer. Field "reference" [2 pairs] holds the result of make_answer_losses under the reference model. With the reward of an
// answer r = beta (log p - log p_reference), the loss of a pair is
//   -(1 - s) log sigmoid(r_chosen - r_rejected) - s log sigmoid(r_rejected - r_chosen).
// Along cp, answers are sums over ranks, and each rank counts 1/cp of the loss. The loss is counted in pairs. Metrics: reward_chosen,
// reward_rejected, reward_margin, and reward_accuracy (pairs with a positive margin).
std::unique_ptr<Objective> make_dpo(const DpoOptions& options);

// For the reference model: the negative log-probability of each answer, as per-sample losses in double. Without gradients.
std::unique_ptr<Objective> make_answer_losses();

}  // namespace cairn::model
