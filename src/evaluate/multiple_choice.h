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
  std::string prefix = {};  // before every context
  int64_t batch = 8;        // texts read together
};

// One choice after its context.
struct ChoiceScore {
  double log_likelihood = 0;  // summed over its tokens, in nats
  int64_t tokens = 0;
  int64_t bytes = 0;  // of the choice as it stands in the file
};

struct ChoiceResult {
  std::vector<ChoiceScore> scores;  // of each choice
  int64_t picked = 0;               // by the sum
  int64_t picked_norm = 0;          // by the sum per byte
  int64_t picked_token = 0;         // by the mean per token
  bool cut = false;                 // the context was too long: its beginning was left out
};

// The names are lm-eval's: acc picks the choice of the highest summed log-likelihood, acc_norm that of the highest per byte of its text;
// acc_token that of the highest mean. Among equals the first.
struct ChoiceSummary {
  Fraction acc, acc_norm, acc_token;
  int64_t cut = 0;  // items whose context was too long
};

// How a choice is put behind its context: with a space between, unless there is one. Spaces at the context's end go to the choice, which is
// where tokenizers have them; the ids of a choice are those by which the whole is longer than the context alone.
struct ChoiceText {
  std::vector<int32_t> tokens;  // context and choice
  int64_t first = 0;            // of the choice's
};
ChoiceText choice_text(const EvaluatedModel& evaluated, const std::string& context, const std::string& choice);

ChoiceSummary multiple_choice(const EvaluatedModel& evaluated, const std::vector<ChoiceItem>& items, const ChoiceOptions& options,
                              const std::function<void(const ChoiceItem&, const ChoiceResult&)>& on_item = {},
                              const OnProgress& progress = {});

}  // namespace cairn::evaluate
