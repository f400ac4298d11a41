#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "evaluate/evaluated_model.h"
#include "evaluate/fraction.h"
#include "evaluate/item_file.h"

namespace cairn::evaluate {

struct ChoiceOptions {
  std::string prefix = {};  // prepended to every context
  int64_t batch = 8;        // sequences per batch
};

// The score of one choice given its context.
struct ChoiceScore {
  double log_likelihood = 0;  // summed over its tokens, in nats
  int64_t tokens = 0;
  int64_t bytes = 0;  // the choice's first token text in the file
};

struct ChoiceResult {
  std::vector<ChoiceScore> scores;  // of each choice
  int64_t picked = 0;               // by the highest sum
  int64_t picked_norm = 0;          // by the highest sum per byte
  int64_t picked_token = 0;         // by the highest mean per token
  bool cut = false;                 // the context was too long and lost its beginning
};

// The names are those of lm-eval: acc picks the choice with the highest summed log-likelihood, acc_norm the highest per byte, acc_token the
// highest mean per token. Ties go to the first choice.
struct ChoiceSummary {
  Fraction acc, acc_norm, acc_token;
  int64_t cut = 0;  // items whose context was too long
};

// Context and choice as one sequence, as in lm-eval: a space goes between them unless there is one, and spaces at the end of the context
// move to the choice, where tokenizers have them. The choice's tokens are those after the tokens of the context alone.
struct ChoiceText {
  std::vector<int32_t> tokens;  // context and choice
  int64_t first = 0;            // the choice's first token
};
ChoiceText choice_text(const EvaluatedModel& evaluated, const std::string& context, const std::string& choice);

ChoiceSummary multiple_choice(const EvaluatedModel& evaluated, const std::vector<ChoiceItem>& items, const ChoiceOptions& options,
                              const std::function<void(const ChoiceItem&, const ChoiceResult&)>& on_item = {},
                              const OnProgress& progress = {});

}  // namespace cairn::evaluate
