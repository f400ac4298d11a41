#pragma once

namespace cairn::base {
class Log;
}

namespace cairn::study {

struct ProofOptions;
class Findings;

// Item 5: loss after equal steps on text, and the time of a step over slow links.
void prove_lsh_training(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
