// The data of a study: each domain's tokens, cut into samples. The last samples are held out.
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
  // Held-out samples: even ones fit priors, odd ones measure. No sample is in both.
  std::vector<evaluate::ScoredTokens> development = {}, test = {};
  double contaminated = 0;  // fraction of held-out 32-token runs that also occur in some domain's training text
};

struct DomainSetup {
  std::string tokenizer_file;
  std::string cache_folder;  // empty: nothing is kept
  int threads = 1;
};

// Opens all domains of a recipe, ordered by name. Refuses a domain that is too small to hold anything out.
std::vector<DomainText> open_domains(const HdeeRecipe& recipe, const DomainSetup& setup, base::Log& log);

}  // namespace cairn::study
