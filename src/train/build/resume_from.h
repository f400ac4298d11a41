#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>

#include "snapshot/run_lock.h"
#include "train/job.h"
#include "train/start.h"

namespace cairn::base {
class Recipe;
}

namespace cairn::train {

// The number of islands that step separately, by the recipe; 1: none do.
int64_t separate_islands(base::Recipe& recipe);

// Refuses a run that has done more steps than train.steps.
void check_steps_left(int64_t steps, int64_t done, const std::filesystem::path& run);

// Holds this rank's island directory, so that a run that is resumed while an island still trains on another machine is refused. Null on
// ranks that write nothing, and for the run directory itself, which the command line holds.
std::unique_ptr<snapshot::RunLock> hold_island_directory(const Job& job, const Start& start);

}  // namespace cairn::train
