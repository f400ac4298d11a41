// `cairn prune` on ranks that are threads of this process, as proofs call it.
#pragma once
#include "study/prune/prune.h"

namespace cairn::study {

PruneResult prune_on_ranks(const PruneRecipe& recipe, const PruneSetup& setup, int ranks = 1);

}  // namespace cairn::study
