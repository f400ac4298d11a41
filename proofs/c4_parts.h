// The parts of the proof of C4: diagnosis (c4.cpp) and traffic (c4_traffic.cpp).
#pragma once
#include "study/claims.h"

namespace cairn::study {

void prove_c4_diagnosis(const ProofOptions&, Findings&, base::Log&);
void prove_c4_traffic(const ProofOptions&, Findings&, base::Log&);

}  // namespace cairn::study
