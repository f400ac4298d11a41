// Which weights of a layer are removed.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "study/prune/prune_options.h"

namespace cairn::study {

// How many weights go, and among which others they are the lowest.
struct PruneRule {
  double sparsity = 0.5;
  PrunePattern pattern = {};
  bool by_row = false;
};

// Scores of a weight [out, in]; the lowest are removed.
at::Tensor magnitude_scores(const at::Tensor& weight);
at::Tensor random_scores(const at::Tensor& weight, const base::Random& random);
at::Tensor wanda_scores(const at::Tensor& weight, const at::Tensor& mean_square /*[in], of the inputs over tokens*/);

// What stays, bool [out, in]. Exactly floor(sparsity * elements) weights go, of the layer or of each row; of equal scores those that come
// first. n:m: n of every m neighbours in a row. Weights outside of `kept_before` go first; undefined: there were none.
at::Tensor keep_highest(const at::Tensor& scores, const PruneRule& rule, const at::Tensor& kept_before = {});

// SparseGPT (arXiv:2301.00774). With the Hessian of the layer's squared error, H = 2 x^T x / tokens [in, in], it removes weights column by
// column, and the columns behind take over what is lost. Writes into `weight`, also 0 where it removes; returns what stays.
at::Tensor prune_sparsegpt(const at::Tensor& weight /*[out, in] fp32*/, const at::Tensor& hessian, const PruneRule& rule,
                           const at::Tensor& kept_before = {});

}  // namespace cairn::study
