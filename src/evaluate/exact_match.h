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
  std::string prefix = {};                  // before every prompt
  std::vector<std::string> stops = {"\n"};  // each ends an answer, itself left out
  int64_t tokens = 64;                      // most of an answer
  int64_t batch = 8;                        // prompts continued together
};

struct AnswerResult {
  std::string text;         // what the model wrote
  bool exact = false;       // one of the answers, but for spaces around it
  bool exact_norm = false;  // one of them after normalising both
  std::string ended;        // "stop", "end_of_text", "tokens", "context"
};

struct AnswerSummary {
  Fraction exact_match, exact_match_norm;
};

// Lower case (ASCII), punctuation (ASCII) away, the words a, an and the away, one space between words: how answers are compared since
// SQuAD.
std::string normalised(std::string_view text);

// The model writes the likeliest token after the likeliest token. A prompt that leaves no room for an answer is refused.
AnswerSummary exact_match(const EvaluatedModel& evaluated, const std::vector<AnswerItem>& items, const AnswerOptions& options,
                          const std::function<void(const AnswerItem&, const AnswerResult&)>& on_item = {}, const OnProgress& progress = {});

}  // namespace cairn::evaluate
