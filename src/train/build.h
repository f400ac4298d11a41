#pragma once
#include <memory>

#include "base/recipe.h"
#include "data/subset.h"
#include "train/job.h"
#include "train/start.h"

namespace cairn::comm {
class World;
}

namespace cairn::train {

// Turns a recipe into a job: reads and checks it, makes the plan, builds model, data, optimizer and sync, and restores the newest snapshot
// if start.resume is set. Collective. train/build/build_steps.h lists the parts.
std::unique_ptr<Job> build(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset);

}  // namespace cairn::train
