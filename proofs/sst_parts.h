// The parts of the proof of sparse spectral training.
#pragma once
#include "proofs/markov_runs.h"
#include "study/claims.h"

namespace cairn::study {

// Two layers of width 48, of which six pairs of vectors train at a time.
inline const MarkovRuns::Shape kSpectralShape{.layers = 2, .embed = 48, .heads = 4, .mlp = 128, .length = 24, .batch = 48};

// Formulas, layouts, interruptions, bytes. `start`: a run that has hardly begun.
void prove_spectral_exactness(const ProofOptions& options, const MarkovRuns& runs, const std::filesystem::path& start, Findings& findings);
// Lorentz layers and Riemannian Adam on a tree.
void prove_spectral_tree(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
