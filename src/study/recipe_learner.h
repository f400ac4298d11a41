// The learner of a study that is the run of a recipe (train::run).
#pragma once
#include <filesystem>
#include <functional>
#include <memory>

#include "base/recipe.h"
#include "study/value_utility.h"

namespace cairn::base {
class Stop;
}

namespace cairn::study {

struct RecipeLearner {
  base::Recipe recipe;
  std::filesystem::path cache = {};  // of tokenized text
  std::string device = "cpu";
  int threads = 1;
  const base::Stop* stop = nullptr;  // may be null
};

// Trains in this process, on one rank, and writes nothing. Results are kept: the same samples are trained on once.
std::unique_ptr<Learner> make_recipe_learner(RecipeLearner what);

}  // namespace cairn::study
