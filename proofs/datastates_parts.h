// The parts of the proof of lazy snapshots.
#pragma once
#include <chrono>

namespace cairn::base {
class Log;
}

namespace cairn::study {

// Returns after this time.
void wait_for_time(std::chrono::duration<double> time);

class Findings;
struct ProofOptions;

// Ranks killed while they save: datastates_crashes.cpp.
void prove_lazy_saves_survive_kills(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
