// The parts of the proof of single merging that are not its pilot.
#pragma once

namespace cairn::base {
class Log;
}

namespace cairn::study {

struct ProofOptions;
class Findings;

// What a round of gossip does to vectors: the weights that it really applied, and its result, against the matrix product in double.
void prove_gossip_rounds(const ProofOptions& options, Findings& findings);

// Language models on four languages, one for each pair of islands, trained by `cairn train` and merged by `cairn snapshot merge`.
void prove_merged_languages(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
