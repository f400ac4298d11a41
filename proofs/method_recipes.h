// One recipe for each way to train a part of a model, all of one small decoder.
#pragma once
#include <filesystem>
#include <functional>
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
  bool trains_all = false;  // each step changes every parameter: nothing is frozen or inactive
  // A recipe that starts on one rank from what a run has trained. Empty: model.from = the run, and new adapters or factors.
  std::function<base::Recipe(const std::filesystem::path& run)> further = {};
  std::map<std::string, std::string> refused = {};  // layouts that the method excludes, and why
  std::string refuses(const std::string& layout) const { return refused.contains(layout) ? refused.at(layout) : std::string(); }
};

// Trains the model that they start from first, into the scratch folder.
std::vector<MethodRecipe> method_recipes(const ProofOptions& options, base::Log& log);

}  // namespace cairn::study
