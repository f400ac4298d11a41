#pragma once
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

// Trains as the recipe says, on every rank of the world at once; all ranks return the same result. A function, so that jobs can call it
// many times, each on its own subset of the training samples. A stop requested on any rank is agreed on at the next step: all ranks save
// and return.
Result run(comm::World& world, base::Recipe recipe, const Start& start, const data::Subset& subset, const base::Stop& stop);

}  // namespace cairn::train
