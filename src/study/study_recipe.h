// A recipe of a study: [study...] beside the sections that train its models.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/recipe.h"
#include "train/settings.h"

namespace cairn::study {

struct StudyRecipe {
  base::Recipe all;       // everything: the schemas of a study read their sections from it
  base::Recipe training;  // without [study...]
};

// `sets`: KEY=VALUE of --set; those of study.* go to `all` alone. `section`: the name in the place of "study".
StudyRecipe split_recipe(const base::Recipe::File& file, const std::vector<std::string>& sets, const std::string& section = "study");

// The recipe of one training of a study: with some keys set.
base::Recipe with_keys(base::Recipe recipe, const std::vector<std::pair<std::string, base::Setting>>& keys);

// A checksum of the values that a recipe has, wherever they come from; the sections (with those below them) that `without` names are left
// out. The recipe has been read.
uint64_t checksum_of_values(const base::Recipe& recipe, const std::vector<std::string>& without);

// The same for the options of one section, without some of its keys.
template <typename T>
uint64_t checksum_of_options(const base::Schema<T>& schema, const T& options, const std::vector<std::string>& without = {}) {
  std::string text;
  const std::vector<base::Setting> values = schema.values_of(options);
  for (size_t i = 0; i < values.size(); ++i)
    if (const std::string& key = schema.section().entries[i].key; std::find(without.begin(), without.end(), key) == without.end())
      text += key + " = " + base::to_toml(values[i]) + "\n";
  return base::checksum(text);
}

}  // namespace cairn::study
