#pragma once
#include <functional>

#include "base/recipe.h"
#include "data/subset.h"
#include "train/start.h"

namespace cairn::base {
class Stop;
}
namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;

// Trains as the recipe says. Every rank of the world calls it, and all ranks return the same result. A program may call it many times, with
// another subset of the training samples each time. A stop requested on any rank takes effect on all ranks at the next step: they save a
// snapshot and return. `at_end` is called after the last step, with the trained model still in memory.
Result run(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset, const base::Stop& stop,
           const std::function<void(Job&)>& at_end = {});

}  // namespace cairn::train
