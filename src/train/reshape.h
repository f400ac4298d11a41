// A saved run in another layout, without training: `cairn snapshot reshape`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/recipe.h"
#include "train/start.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

// Loads the newest snapshot of the run directory `start.out` in the layout of the recipe, as --resume does, and saves it again as the ranks
// of that layout do. It replaces the one that was loaded. Returns its step. Collective.
int64_t reshape(comm::World& world, base::Recipe recipe, Start start);

// Makes the run directory `to` with a copy of the snapshot `step` of the run `from`, and of those of its islands, each verified as it is
// read. Returns how many bytes were copied. `to` must not be there yet.
int64_t copy_run(const std::filesystem::path& from, int64_t step, const std::filesystem::path& to);

}  // namespace cairn::train
