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

// What a program does with a run that it makes: at its start, before the first step (not where a run is resumed later than that), and at
// its end, with the trained model still in memory. Either may be empty; all ranks call them.
struct RunHooks {
  std::function<void(Job&)> at_begin = {};
  std::function<void(Job&)> at_end = {};
};

// Trains as the recipe says. Every rank of the world calls it, and all ranks return the same result. A program may call it many times, with
// another subset of the training samples each time. A stop requested on any rank takes effect on all ranks at the next step: they save a
// snapshot and return.
Result run(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset, const base::Stop& stop,
           const RunHooks& hooks = {});

}  // namespace cairn::train
