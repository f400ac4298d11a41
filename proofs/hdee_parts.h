#pragma once
#include <filesystem>
#include <string>

#include "study/claims.h"

namespace cairn::study {

// Items 1 and 5 of HDEE: the ensemble against brute force, and what a mean of logs would be.
void prove_hdee_exactness(const ProofOptions& options, Findings& findings, base::Log& log);

// The pilot: classifiers of three domains of Gaussians.
void prove_hdee_gaussians(const ProofOptions& options, Findings& findings, base::Log& log);

struct DomainSizes {
  size_t bytes = 400'000, hard_bytes = 600'000;
  size_t letters = 10;  // of the chain: it has as many contexts as four of them make
};
// Text of three domains, one harder than the other, in FOLDER/easy.txt, medium.txt, hard.txt: words that repeat; sentences from a
// template; a Markov chain of order 4, or the text of a file.
void write_hdee_domains(const std::filesystem::path& folder, const ProofOptions& options, const DomainSizes& sizes = {});

}  // namespace cairn::study
