#include "study/study_recipe.h"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace cairn::study {
namespace {

bool is_key_of(std::string_view key, const std::string& section) { return key.starts_with(section + ".") || key.starts_with(section + "="); }

// The file without [study...], with its line numbers.
base::Recipe::File training_sections(const base::Recipe::File& file, const std::string& section) {
  base::Recipe::File kept{.text = {}, .name = file.name};
  std::istringstream lines(file.text);
  bool own = false, any_header = false;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(" \t");
    const bool header = first != std::string::npos && line[first] == '[';
    any_header = any_header || header;
    if (header) own = line.find(section, first) == line.find_first_not_of("[ \t", first);
    // `study = {...}` and `study.seed.steps = 3` before the first header.
    const size_t after = first == std::string::npos || !line.substr(first).starts_with(section)
                             ? std::string::npos
                             : line.find_first_not_of(" \t", first + section.size());
    const bool inlined = !any_header && after != std::string::npos && (line[after] == '=' || line[after] == '.');
    kept.text += (own || inlined ? "" : line) + "\n";
  }
  return kept;
}

}  // namespace

StudyRecipe split_recipe(const base::Recipe::File& file, const std::vector<std::string>& sets, const std::string& section) {
  StudyRecipe found{.all = base::Recipe::parse(file), .training = base::Recipe::parse(training_sections(file, section))};
  for (const std::string& set : sets) {
    found.all.set(set);
    if (!is_key_of(set, section)) found.training.set(set);
  }
  return found;
}

uint64_t checksum_of_values(const base::Recipe& recipe, const std::vector<std::string>& without) {
  std::istringstream lines(recipe.resolved_toml());
  std::string kept;
  bool left_out = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) {
      const std::string section = line.substr(1, line.find(']') - 1);
      left_out = std::any_of(without.begin(), without.end(),
                             [&](const std::string& one) { return section == one || section.starts_with(one + "."); });
    }
    if (!left_out) kept += line.substr(0, line.rfind("  # ")) + "\n";
  }
  return base::checksum(kept);
}

base::Recipe with_keys(base::Recipe recipe, const std::vector<std::pair<std::string, base::Setting>>& keys) {
  for (const auto& [key, value] : keys) recipe.set(key, value, "the study");
  return recipe;
}

}  // namespace cairn::study
