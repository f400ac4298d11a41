#include "cli/launch/diagnosis_policy.h"

#include <algorithm>

#include "train/islands/remote_islands.h"

namespace cairn::cli {

elastic::DiagnosisOptions diagnosis_of(base::Recipe recipe) {
  elastic::DiagnosisOptions options = recipe.read(elastic::diagnosis_schema());
  if (train::is_remote_island(recipe.read(train::remote_island_schema()))) options.hang_s = std::max(options.hang_s, 60.0);
  return options;
}

}  // namespace cairn::cli
