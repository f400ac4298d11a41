#pragma once

namespace cairn::base {
class Log;
}

namespace cairn::study {

class Findings;
struct ProofOptions;

// Item 5 of NoLoCo: micro-batches that change over between the islands' pipelines keep stages of different islands fit for each other.
void prove_routes(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
