// The load of experts over a step, and the biases that even it out without a loss (arXiv:2408.15664):
//
//   c_e   slots that chose expert e in the step, over all ranks that step together
//   b_e <- b_e + u sign(mean of c - c_e)       before the next step; b takes part in the choice alone
//
// Buffers of a layer NAME, int64 [experts]: NAME.expert_counts, of the passes with gradients since the last step; NAME.expert_load, c of
// the last step. The biases are parameters without a gradient.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/call.h"

namespace cairn::model {

class Model;

void add_expert_buffers(Buffers& buffers, const std::string& name, int64_t experts, const at::TensorOptions& options);

// Counts the choices ids [tokens, top_k] of the tokens that count: those with sequence >= 0.
void count_choices(std::string_view name, const at::Tensor& ids, const at::Tensor& sequence, int64_t experts, const Call& call);

// After a step: sums the counts over the ranks that step together with `sum` (in place), keeps them as the load and begins to count again.
// `skipped`: they are forgotten, and the load is zero. Returns the load of the most chosen expert over the mean, of the layer where it is
// the largest; 0 where no layer has experts or no token has a target. Waits for the device.
double commit_expert_counts(Buffers& buffers, bool skipped, const std::function<void(const at::Tensor&)>& sum);

// A layer's biases: the parameter's place in the model, and the load that they follow.
struct ExpertBias {
  size_t parameter = 0;
  std::string load;  // the buffer
};
std::vector<ExpertBias> expert_biases(const Model& model);

// The biases after a step of this load; the same where it is zero.
at::Tensor moved_biases(const at::Tensor& biases, const at::Tensor& load, double rate);

}  // namespace cairn::model
