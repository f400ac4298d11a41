// A small model of bytes with random weights, to be judged in tests.
#pragma once
#include <memory>
#include <string>

#include <ATen/core/grad_mode.h>

#include "base/random.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "evaluate/evaluated_model.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/decoder/decoder.h"

namespace cairn::evaluate {

struct SmallModel {
  model::DecoderShape shape{.vocab = 257, .embed = 16, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 24, .length = 24};
  std::unique_ptr<model::Model> model = model::make_decoder(shape);
  model::FlatWeights weights{model->layout(), at::empty({model->elements()})};
  model::Buffers buffers = model->make_buffers(at::kFloat);
  std::unique_ptr<data::Tokenizer> tokenizer = data::make_byte_tokenizer();

  SmallModel() {
    base::Random(5).fill_normal({weights.flat().mutable_data_ptr<float>(), static_cast<size_t>(weights.flat().numel())});
    weights.flat().mul_(0.3);
  }

  // Texts begin after the end of another.
  EvaluatedModel evaluated() {
    return {.model = *model,
            .weights = weights,
            .buffers = buffers,
            .tokenizer = *tokenizer,
            .vocab = shape.vocab,
            .length = shape.length,
            .text_prefix = {256},
            .begin = 256,
            .stops = {256}};
  }

  // log p of tokens[i] after all before it, for i from 1 on: one sequence by itself, all logits, in double.
  std::vector<double> log_probabilities(const std::vector<int32_t>& tokens) {
    if (tokens.size() < 2) return {};
    const at::NoGradGuard no_grad;
    const mesh::Axes alone;
    const model::Call call{.weights = weights, .buffers = buffers, .axes = alone};
    model::Values values;
    values.put("tokens", at::tensor(tokens, at::kInt).to(at::kLong).view({1, -1}).narrow(1, 0, static_cast<int64_t>(tokens.size()) - 1));
    for (const auto& block : model->blocks()) block->forward(values, nullptr, call);
    const at::Tensor logs = at::log_softmax(values.take("logits").to(at::kDouble), -1);
    std::vector<double> found;
    for (size_t i = 1; i < tokens.size(); ++i) found.push_back(logs[0][static_cast<int64_t>(i) - 1][tokens[i]].item<double>());
    return found;
  }
};

}  // namespace cairn::evaluate
