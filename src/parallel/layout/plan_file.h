// Plans that were saved, and perhaps edited by a person.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/plan.h"

namespace cairn::parallel {

// The plan that to_json wrote: parse_plan(to_json(p)) == p. Refuses what is no plan, naming the file, the key, what was found and what is
// allowed. Whether a model can do what it says is `place`'s question.
Plan parse_plan(std::string_view json, const std::string& file);
Plan read_plan(const std::filesystem::path& file);

// In which two plans differ, a line for each: "placements.model.layers.0.mlp.up_proj.weight: tp: split(0) -> replicated".
std::vector<std::string> differences(const Plan& before, const Plan& after);

}  // namespace cairn::parallel
