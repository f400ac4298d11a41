#pragma once
#include <cstdint>

#include "parallel/plan.h"
#include "planner/traffic.h"

namespace cairn::planner {

// Bytes of one rank between steps.
struct RankBytes {
  int64_t parameters = 0;  // its shards, and what passes read where that is separate
  int64_t gradients = 0;
  int64_t trained_elements = 0;  // for which it has optimizer state
  bool operator==(const RankBytes&) const = default;
};

// As parallel::ParameterStore will hold it. `master_bytes`: of one element as it is kept and updated, which passes may read in fewer.
RankBytes rank_bytes(const model::Model& model, const parallel::Plan& plan, const StepRules& rules, int rank, int64_t master_bytes = 4);

}  // namespace cairn::planner
