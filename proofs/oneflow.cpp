// OneFlow: placements that infer themselves (items 1 to 3), actors with registers (4 to 7), inferred plans in training (8). Each has a file
// of its own.
#include "proofs/oneflow_placements.h"
#include "proofs/oneflow_runtime.h"

namespace cairn::study {

void prove_oneflow(const ProofOptions& options, Findings& findings, base::Log& log) {
  prove_oneflow_placements(options, findings, log);
  prove_oneflow_runtime(options, findings, log);
  prove_oneflow_training(options, findings, log);
}

}  // namespace cairn::study
