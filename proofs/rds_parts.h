#pragma once
#include <filesystem>

#include "study/claims.h"

namespace cairn::study {

// Selections against the full matrix of scores, and vectors of documents alone, in batches, packed and along cp (rds_exact.cpp). `model`:
// a run of a model of bytes that knows at least `kExactTokens` positions.
inline constexpr int64_t kExactTokens = 24;
void prove_rds_exactness(const ProofOptions& options, const std::filesystem::path& model, Findings& findings, base::Log& log);

// With a folder as --data, Alpaca records among GSM8K's (rds_instruct.cpp).
void prove_rds_on_instructions(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
