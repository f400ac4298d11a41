#pragma once
#include <ATen/core/Tensor.h>

#include "mesh/axes.h"
#include "model/values.h"

namespace cairn::model {

// The cross entropy of every row of logits against its target, and what its gradient needs. Where the ranks along tp share the vocabulary
// out, only one number pair a row travels: the log of the sum of exponentials and the target's logit of each part.
struct RowLosses {
  at::Tensor rows;     // the logits [rows, vocab here]
  at::Tensor targets;  // [rows], as the kernels read them here
  at::Tensor loss;     // [rows], fp32 or more, alike on all ranks along tp
  at::Tensor lse;      // [rows]
};
RowLosses row_losses(const Value& logits, const at::Tensor& targets, const mesh::Axes& axes);

// Whether the rows' vocabulary is shared out.
bool is_vocab_parallel(const Value& logits, const mesh::Axes& axes);

}  // namespace cairn::model
