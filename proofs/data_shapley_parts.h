#pragma once
#include "study/claims.h"

namespace cairn::study {

// The value of four parts of a text, one of which has its letters shuffled (data_shapley_text.cpp). Refuses a --data that is too short.
void prove_data_shapley_text(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
