#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "model/model.h"

namespace cairn::evaluate {

// The model under evaluation, with its tokenizer. Borrows everything.
struct EvaluatedModel {
  const model::Model& model;
  const model::Weights& weights;
  model::Buffers& buffers;
  const data::Tokenizer& tokenizer;
  int64_t vocab = 0;                      // of the model; the tokenizer may have fewer ids
  int64_t length = 0;                     // the model's context length, in tokens
  std::vector<int32_t> text_prefix = {};  // before every text: data::text_prefix
  std::optional<int32_t> begin = {};      // the context of an empty prompt where `text_prefix` is empty: bos, else eos, as in lm-eval
  std::vector<int32_t> stops = {};        // tokens that end an answer

  // `text_prefix` and the ids of a text. Refuses ids that the model does not have.
  std::vector<int32_t> prompt(std::string_view text) const;
  void check(std::span<const int32_t> ids) const;
};

// Called with the progress of an evaluation.
using OnProgress = std::function<void(int64_t done, int64_t of)>;

}  // namespace cairn::evaluate
