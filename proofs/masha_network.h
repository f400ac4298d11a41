#pragma once
#include "study/claims.h"

namespace cairn::study {

// MASHA on networks: two players that are a generator and a critic, and a transformer against a perturbation.
void masha_networks(const ProofOptions& options, Findings& findings, base::Log& log);
// The latter, through the trainer: train.method = "masha1" and "masha2" with an adversary.
void masha_adversary(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
