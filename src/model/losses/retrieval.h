// Losses of dense retrieval: queries and passages as vectors, compared by dot products in fp32.
#pragma once
#include <memory>

#include <ATen/core/Tensor.h>

#include "model/objective.h"

namespace cairn::model {

// The loss over all passages of a batch (make_retrieval).
enum class PassageLoss { margin_mse, kl_list, labels };

struct RetrievalLossOptions {
  double pair_weight = 1;
  double in_batch_weight = 0.75;
  PassageLoss in_batch_loss = PassageLoss::margin_mse;
};

// TAS-Balanced (arXiv:2104.06967). Value "vectors" [B, 3, embed] holds a query q_i, its right passage p_i and a wrong one n_i for each
// sample; s(q, p) = q . p. With the stored teacher's scores T of field "pair_scores" double [B, 2] and the in-batch teacher's scores U of
// field "teacher_scores" float [B, 2B] (all right passages, then all wrong ones), the loss of sample i is
//
//   pair_weight ((s(q_i, p_i) - s(q_i, n_i)) - (T_i0 - T_i1))^2 + in_batch_weight L_i
//
//   margin_mse  L_i = 1/2 sum over j != i of [(s(q_i, p_i) - s(q_i, p_j)) - (U(q_i, p_i) - U(q_i, p_j))]^2 / (B - 1)
//                   + the same with n_j in place of p_j
//   kl_list     L_i = KL(softmax U(q_i, .) || softmax s(q_i, .)) over all 2B passages
//   labels      L_i = -log softmax s(q_i, .) at p_i: every other passage counts as wrong, and no teacher is asked
//
// It needs the whole batch (Separates::nothing). The loss is counted in samples.
std::unique_ptr<Objective> make_retrieval(const RetrievalLossOptions& options);
// The part that separates over samples, for held-out ones: the loss of each query's own pair, by the stored scores, or with pair_weight 0
// log(1 + exp(s(q, n) - s(q, p))). The same measures; those over a whole batch are NaN.
std::unique_ptr<Objective> make_retrieval_pairs(const RetrievalLossOptions& options);

// Late interaction (ColBERT): the score of query i and passage j is the sum over the query's tokens of the largest dot product with a token
// of the passage. queries [m, query length, embed] with lengths int64 [m], passages [n, passage length, embed] with lengths [n]; every
// length is at least 1. Returns fp32 [m, n].
at::Tensor late_interaction(const at::Tensor& queries, const at::Tensor& query_lengths, const at::Tensor& passages,
                            const at::Tensor& passage_lengths);

}  // namespace cairn::model
