#pragma once
#include <vector>

#include "snapshot/pretrained.h"

namespace cairn::snapshot {

// The weighted mean of several finished models, parameter by parameter:
//
//   theta = sum_k w_k theta_k / sum_k w_k
//
// in fp32 ("A Single Merging Suffices": models that communicated a little while they trained stay mergeable). Optimizer state and
// counters are not averaged. `into` are the parameters of a model of that shape; one tensor of the others is read at a time. `weights`:
// one for each model, above 0; empty: all equal. Throws bad_input unless all models have the same shape, wiring and tokenizer.
void merge_models(const std::vector<Pretrained>& models, std::vector<double> weights, const mesh::NamedTensors& into);

}  // namespace cairn::snapshot
