// Plan files: saved with every run, perhaps edited by a person.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/plan.h"

namespace cairn::parallel {

// Reads what to_json writes: parse_plan(to_json(p), file) == p. Anything else is bad_input that names the file, the key, what was found and
// what is allowed. Whether a model can run the plan is checked by fit_to_model.
Plan parse_plan(std::string_view json, const std::string& file);
Plan read_plan(const std::filesystem::path& file);

// The differences of two plans, one line each: "placements.model.layers.0.mlp.up_proj.weight: tp: split(0) -> replicated".
std::vector<std::string> differences(const Plan& before, const Plan& after);

}  // namespace cairn::parallel
