#pragma once
#include "base/recipe.h"
#include "parallel/plan.h"

namespace cairn::train {

// A saved plan, perhaps edited by a person, decides how a run is laid out: its mesh, micro-batches, stages and what is shared out take the
// place of the recipe's keys. What both say must be the same.

// Sets the recipe's keys of the layout as the plan has them, so that the run's own recipe.toml tells what was run. Refuses a plan for
// another number of ranks, and keys that the recipe gives otherwise.
void use_layout_of(const parallel::Plan& given, base::Recipe& recipe, int ranks);

// Puts into the plan that those keys make what no key can say: the order of the mesh, which blocks each stage runs, placements. Refuses
// what else differs; parallel::place refuses what the model cannot do.
void take_from(const parallel::Plan& given, parallel::Plan& made);

}  // namespace cairn::train
