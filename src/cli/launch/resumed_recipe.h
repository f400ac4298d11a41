// The recipe of a run that is resumed: where its relative paths begin, what differs from it, and whether it has done all its steps.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/recipe.h"

namespace cairn::cli {

// The working directory of the run's last start; empty where that is not known or is the present one.
std::filesystem::path start_folder(const std::filesystem::path& run);

// The recipe that a run saved. Values keep their origins. Relative paths begin at `folder`, unless that is empty.
base::Recipe read_saved_recipe(const base::Recipe::File& saved, const std::filesystem::path& folder);

// One line for each key whose value differs from that of the resumed run. Throws bad_input for a key of the model's shape: the run's
// weights do not fit another one.
std::vector<std::string> changed_keys(base::Recipe before, base::Recipe now, const std::filesystem::path& run);

struct RunDirectory;

// What to say of a resumed run that has done all its steps; empty: it has not. Islands that step separately are judged only where all of
// them are visible here.
std::string finished_line(base::Recipe recipe, const RunDirectory& run);

// The date for chat templates: that of the resumed run, or today's.
std::string day_of_run(const std::filesystem::path& run, bool resume);

}  // namespace cairn::cli
