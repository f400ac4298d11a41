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

// The model that is judged. Everything is borrowed.
struct EvaluatedModel {
  const model::Model& model;
  const model::Weights& weights;
  model::Buffers& buffers;
  const data::Tokenizer& tokenizer;
  int64_t vocab = 0;                  // ids that the model knows
  int64_t length = 0;                 // tokens that the model reads at most
  std::vector<int32_t> before = {};   // what stands before every text that it is given
  std::optional<int32_t> begin = {};  // what the first token of a text is judged after where `before` is empty
  std::vector<int32_t> stops = {};    // what ends an answer

  // The ids of a text, with `before`. Refuses a tokenizer that gives ids which the model does not know.
  std::vector<int32_t> prompt(std::string_view text) const;
  void check(std::span<const int32_t> ids) const;
};

// Hears how much of the work is done.
using OnProgress = std::function<void(int64_t done, int64_t of)>;

}  // namespace cairn::evaluate
