#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluate/evaluated_model.h"
#include "evaluate/fraction.h"
#include "evaluate/item_file.h"

namespace cairn::evaluate {

struct AnswerOptions {
  std::string prefix = {};                  // prepended to every prompt
  std::vector<std::string> stops = {"\n"};  // texts that end an answer; not part of it
  int64_t tokens = 64;                      // longest answer
  int64_t batch = 8;                        // prompts per batch
};

struct AnswerResult {
  std::string text;         // the model's answer
  bool exact = false;       // equals one of the answers, ignoring surrounding whitespace
  bool exact_norm = false;  // equals one of them after normalising both
  std::string ended;        // "stop", "end_of_text", "tokens", "context"
};

struct AnswerSummary {
  Fraction exact_match, exact_match_norm;
};

// SQuAD's normalisation: lower case (ASCII), without punctuation (ASCII) and the words a, an and the, one space between words.
std::string normalised(std::string_view text);

// Greedy decoding, compared with the expected answers. Refuses a prompt that leaves no room for an answer.
AnswerSummary exact_match(const EvaluatedModel& evaluated, const std::vector<AnswerItem>& items, const AnswerOptions& options,
                          const std::function<void(const AnswerItem&, const AnswerResult&)>& on_item = {}, const OnProgress& progress = {});

}  // namespace cairn::evaluate
