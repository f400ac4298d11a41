#pragma once
#include "proofs/layout_run.h"

namespace cairn::study {

// A small decoder with one more parameter that no block uses, trained by the trainer's own step under a plan of `ranks` that share state
// out as ZeRO's stage says: what no recipe can ask for.
Trained train_with_unused(const ProofOptions& options, int ranks, int zero, int64_t steps);

}  // namespace cairn::study
