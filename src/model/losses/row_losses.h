#pragma once
#include <functional>

#include <ATen/core/Tensor.h>

#include "mesh/axes.h"
#include "model/values.h"

namespace cairn::model {

// The cross entropy of every row of logits, and what its gradient needs. With a vocabulary that is sharded along tp (vocabulary-parallel
// cross entropy, Megatron-LM), ranks exchange two numbers per row: the log-sum-exp and the target's logit of each part. Chunked logits are
// made and forgotten chunk by chunk. Logits are divided by the temperature, in place.
struct RowLosses {
  at::Tensor rows;     // the logits [rows, local vocab]; undefined where they are chunked
  at::Tensor targets;  // [rows], relative to the local part of the vocabulary
  at::Tensor loss;     // [rows], fp32 or more, the same on all ranks along tp
  at::Tensor lse;      // [rows]
};
RowLosses row_losses(const Value& logits, const at::Tensor& targets, const mesh::Axes& axes, double temperature = 1);

// Adds the gradient of sum_r scale[r] loss[r] with respect to "logits". Whole logits are overwritten by it. Chunked logits are made again:
// the second pass of a loss that needs all rows before it knows any gradient.
void add_row_gradients(Values& gradients, const Value& logits, const RowLosses& losses, const at::Tensor& scale);

// Losses and gradients in one pass, for a loss that is a sum over rows: `slope` gives the gradient of the whole loss with respect to the
// losses of rows [begin, begin + n), from these losses [n].
using RowSlope = std::function<at::Tensor(const at::Tensor& loss, int64_t begin)>;
at::Tensor /*loss [rows]*/ row_losses_and_gradients(Values& gradients, const Value& logits, const at::Tensor& targets,
                                                    const mesh::Axes& axes, const RowSlope& slope, double temperature = 1);

// Whether the vocabulary is sharded along tp.
bool is_vocab_parallel(const Value& logits, const mesh::Axes& axes);

}  // namespace cairn::model
