#pragma once
#include <ATen/core/Tensor.h>

#include "mesh/axes.h"
#include "model/values.h"

namespace cairn::model {

// The cross entropy of every row of logits, and what its gradient needs. With a vocabulary that is sharded along tp (vocabulary-parallel
// cross entropy, Megatron-LM), ranks exchange two numbers per row: the log-sum-exp and the target's logit of each part.
struct RowLosses {
  at::Tensor rows;     // the logits [rows, local vocab]
  at::Tensor targets;  // [rows], relative to the local part of the vocabulary
  at::Tensor loss;     // [rows], fp32 or more, the same on all ranks along tp
  at::Tensor lse;      // [rows]
};
RowLosses row_losses(const Value& logits, const at::Tensor& targets, const mesh::Axes& axes);

// Whether the vocabulary is sharded along tp.
bool is_vocab_parallel(const Value& logits, const mesh::Axes& axes);

}  // namespace cairn::model
