// The state and the report of lifelong training, as files.
#pragma once
#include <cstdint>
#include <filesystem>

#include "study/lifelong.h"

namespace cairn::study {

// The finished steps, for a resume: `identity` is that of the recipe and of the datasets that arrived in them.
void write_lifelong_state(const LifelongResult& result, uint64_t identity, const std::filesystem::path& path);
struct LifelongState {
  std::string identity;
  LifelongResult result;
};
// Refuses damaged files.
LifelongState read_lifelong_state(const std::filesystem::path& path);

// results.json, accuracy.svg and pool.svg.
void write_lifelong_report(const LifelongResult& result, const LifelongRecipe& recipe, const std::filesystem::path& out);

}  // namespace cairn::study
