// The load of experts over a step, and the biases that even it out without a loss (arXiv:2408.15664):
//
//   c_e   slots that chose expert e in the step, over all ranks that step together
//   b_e <- b_e + u sign(mean of c - c_e)       after each step; b takes part in the choice alone
//
// Buffers of a layer NAME: NAME.expert_counts, int64 [experts], of the passes with gradients since the last step; NAME.expert_bias,
// fp32 [experts], saved with snapshots.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "model/call.h"

namespace cairn::model {

void add_expert_buffers(Buffers& buffers, const std::string& name, int64_t experts, bool biased, const at::TensorOptions& options);

// The bias of a layer; undefined where it has none.
at::Tensor expert_bias(std::string_view name, const Call& call);

// Counts the choices ids [tokens, top_k] of the tokens that count: those with sequence >= 0.
void count_choices(std::string_view name, const at::Tensor& ids, const at::Tensor& sequence, int64_t experts, const Call& call);

// After a step: sums the counts over the ranks that step together with `sum` (in place), updates the biases and resets the counts.
// `skipped`: only resets them. Returns the load of the most chosen expert over the mean, of the layer where it is the largest; 0 where no
// layer has experts or nothing was counted. Waits for the device.
double commit_expert_counts(Buffers& buffers, bool skipped, double rate, const std::function<void(const at::Tensor&)>& sum);

}  // namespace cairn::model
