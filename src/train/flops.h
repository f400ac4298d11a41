#pragma once
#include <cstdint>

#include "model/model.h"

namespace cairn::train {

struct Job;

// FLOPs of a forward pass for each token, from the cards of the blocks. A token attends to half of `length` tokens on average.
double forward_flops_per_token(const model::Model& model, int64_t length);

// FLOPs of a training step for each token, without those of recomputation: the numerator of MFU. Frozen weights have no weight gradient.
double training_flops_per_token(const Job& job);
// Of a sequence of `length` tokens.
double training_flops_per_token(const Job& job, int64_t length);

}  // namespace cairn::train
