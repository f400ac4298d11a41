#pragma once
#include "study/claims.h"

namespace cairn::study {

// Items 1 to 3 of OneFlow: every change of placement, and placements that are inferred.
void prove_oneflow_placements(const ProofOptions& options, Findings& findings, base::Log& log);
void prove_oneflow_training(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
