// The diagnosis.* keys of a recipe, for the agent of its run.
#pragma once
#include "base/recipe.h"
#include "elastic/diagnosis/options.h"

namespace cairn::cli {

// Remote islands wait for each other in ways that the records do not show: their hangs are found later.
elastic::DiagnosisOptions diagnosis_of(base::Recipe recipe);

}  // namespace cairn::cli
