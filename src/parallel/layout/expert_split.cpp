#include "parallel/layout/expert_split.h"

#include <algorithm>

#include "base/check.h"
#include "model/model.h"

namespace cairn::parallel {

int64_t expert_dim(const model::Parameter& parameter) {
  const auto found = std::find(parameter.axes.begin(), parameter.axes.end(), kExpertAxis);
  return found == parameter.axes.end() ? -1 : found - parameter.axes.begin();
}

mesh::Placement::How expert_split(const model::Parameter& parameter, int ranks) {
  const int64_t dim = expert_dim(parameter);
  if (ranks == 1 || dim < 0) return mesh::Replicate{};
  return mesh::even_ragged(dim, parameter.shape[static_cast<size_t>(dim)], ranks);
}

void check_expert_split(const model::Model& model, int ranks) {
  for (const model::Parameter& parameter : model.parameters()) {
    const int64_t dim = expert_dim(parameter);
    if (dim < 0 || parameter.shape[static_cast<size_t>(dim)] >= ranks) continue;
    base::fail_input("mesh.ep = {}: {} has {} experts, and every rank needs at least one: use at most {}, and mesh.dp for the other ranks",
                     ranks, parameter.name, parameter.shape[static_cast<size_t>(dim)], parameter.shape[static_cast<size_t>(dim)]);
  }
}

}  // namespace cairn::parallel
