// Redco: placements from two rules (items 1 to 4), training from three functions (5 to 7, along tp 9). Each has a file of its own.
#include "study/claims.h"

namespace cairn::study {

void prove_redco_rules(const ProofOptions&, Findings&, base::Log&);
void prove_redco_tasks(const ProofOptions&, Findings&, base::Log&);

void prove_redco(const ProofOptions& options, Findings& findings, base::Log& log) {
  prove_redco_rules(options, findings, log);
  prove_redco_tasks(options, findings, log);
}

}  // namespace cairn::study
