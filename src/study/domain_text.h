// What a study trains and measures on: each domain's tokens, cut into samples, of which the last are held out.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/open.h"
#include "evaluate/token_losses.h"
#include "study/hdee_options.h"

namespace cairn::base {
class Log;
}

namespace cairn::study {

struct DomainText {
  std::string name;
  int64_t training_tokens = 0;
  // Held out: the even ones find priors, the odd ones measure; no sample is in both.
  std::vector<evaluate::ScoredTokens> development = {}, test = {};
  double contaminated = 0;  // share of what is held out that stands in the training text of some domain too, 32 tokens in a row
};

struct DomainSetup {
  std::string tokenizer_file;
  std::string cache_folder;  // empty: nothing is kept
  int threads = 1;
};

// All domains of a recipe, by name. A domain too small to hold anything out is refused.
std::vector<DomainText> open_domains(const HdeeRecipe& recipe, const DomainSetup& setup, base::Log& log);

}  // namespace cairn::study
