#pragma once
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/call.h"
#include "model/model.h"

namespace cairn::evaluate {

// One decoder of an ensemble.
struct Expert {
  std::unique_ptr<model::Model> model;
  std::string prefix;          // of its parameter names: "expert.0."
  int32_t first = 0;           // index of its first parameter among those of all experts
  int64_t begin = 0, end = 0;  // its columns in the concatenated hidden states

  int64_t width() const { return end - begin; }
  const model::Block& head() const { return *model->blocks().back(); }
};
using Experts = std::vector<Expert>;

// Runs everything but the head: hidden states [batch, length, width] of tokens [batch, length] from position `begin` on.
at::Tensor hidden_of(const Expert& expert, const at::Tensor& tokens, const model::Call& outer, int64_t begin);

// The head: logits [rows, vocab] of hidden states [rows, width].
at::Tensor logits_of(const Expert& expert, const at::Tensor& hidden, const model::Call& outer);

// log p of targets [rows] given hidden states [rows, width], in double. Holds a bounded number of logits at a time.
at::Tensor log_probabilities(const Expert& expert, const at::Tensor& hidden, const at::Tensor& targets, int64_t vocab,
                             const model::Call& outer);

}  // namespace cairn::evaluate
