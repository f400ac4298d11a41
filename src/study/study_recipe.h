// A recipe of a study: [study...] beside the sections that train its models.
#pragma once
#include <string>
#include <vector>

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

}  // namespace cairn::study
