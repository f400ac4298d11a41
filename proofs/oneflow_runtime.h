#pragma once
#include "study/claims.h"

namespace cairn::study {

// Items 4 to 7 of OneFlow: what actors with registers do.
void prove_oneflow_runtime(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
