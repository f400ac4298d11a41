#pragma once
#include <ATen/core/Tensor.h>

#include "mesh/batch.h"

namespace cairn::comm {
class Group;
}

namespace cairn::model {

// Log-probabilities [rows, local vocab] of logits [..., vocab] divided by a temperature, in fp32 or more. `tp`: the ranks that the
// vocabulary is sharded over; null: it is whole. Collective over them.
at::Tensor log_probabilities(const at::Tensor& logits, comm::Group* tp, double temperature = 1);

// What the loss of each row counts: 0 without a target, else the weight of its sample. [rows], like `rows` [rows, ...].
at::Tensor row_weights(const mesh::Batch& batch, const at::Tensor& rows);

}  // namespace cairn::model
