#pragma once
#include "base/recipe.h"
#include "parallel/plan.h"

namespace cairn::train {

// A plan given by --plan, perhaps edited by hand, decides the layout of a run: mesh, micro-batches, pipeline stages and sharding. It
// replaces the recipe's layout keys. A key that the recipe sets must have the value of the plan.

// Sets the recipe's layout keys to the values of the plan, so that the run's recipe.toml describes the run. Refuses a plan for another
// number of ranks, and keys that the recipe sets to another value.
void use_layout_of(const parallel::Plan& given, base::Recipe& recipe, int ranks);

// Copies into `made`, the plan that those keys make, the parts that no key can express: the order of the mesh axes, the blocks of each
// stage, and placements. Refuses any other difference. parallel::place refuses what the model cannot do.
void take_from(const parallel::Plan& given, parallel::Plan& made);

}  // namespace cairn::train
