#pragma once

namespace cairn::base {
class Log;
}

namespace cairn::study {

struct ProofOptions;
class Findings;

// Items 2 and 3 on ranks that are processes, with sockets slowed down to cards of 80 Mbit/s and 1 ms.
void zeco_collective_of_processes(const ProofOptions& options, Findings& findings, base::Log& log);
void zeco_overlap_of_processes(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
