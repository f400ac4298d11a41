// One recipe for each way to train a part of a model, all of one small decoder.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/recipe.h"

namespace cairn::base {
class Log;
}

namespace cairn::study {

struct ProofOptions;

struct MethodRecipe {
  std::string name;
  base::Recipe recipe;
  bool moves_whole_model = false;                   // each step: nothing stands still
  std::map<std::string, std::string> refused = {};  // layouts that the method excludes, and why
  std::string refuses(const std::string& layout) const { return refused.contains(layout) ? refused.at(layout) : std::string(); }
};

// Trains the model that they start from first, into the scratch folder.
std::vector<MethodRecipe> method_recipes(const ProofOptions& options, base::Log& log);

}  // namespace cairn::study
