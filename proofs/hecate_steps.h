#pragma once

namespace cairn::base {
class Log;
}

namespace cairn::study {

struct ProofOptions;
class Findings;

// Claims about the time and the bytes of a step, in virtual time.
void hecate_steps(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
