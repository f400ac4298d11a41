// The state and the report of a selection in rounds, as files.
#pragma once
#include <cstdint>
#include <filesystem>

#include "study/iterate.h"

namespace cairn::study {

// The finished rounds, for a resume: `identity` is that of recipe and data.
void write_iterate_state(const IterateResult& result, uint64_t identity, const std::filesystem::path& path);
// Sets rounds and weights. Refuses a state of another recipe, and damaged files.
void read_iterate_state(IterateResult& result, const std::filesystem::path& path, uint64_t identity);

// results.json, selected.txt (one sample a line), weights.svg and quotas.svg.
void write_iterate_report(const IterateResult& result, const IterateRecipe& recipe, const std::filesystem::path& out);

}  // namespace cairn::study
