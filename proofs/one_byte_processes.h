#pragma once

namespace cairn::base {
class Log;
}

namespace cairn::study {

struct ProofOptions;
class Findings;

// The claims about machines: islands that are processes of `cairn train`, each with its own sockets and disk.
void one_byte_wire(const ProofOptions& options, Findings& findings, base::Log& log);
void one_byte_churn(const ProofOptions& options, Findings& findings, base::Log& log);
// More machines, bytes and floats: ranks that are processes of `cairn train`.
void one_byte_quality(const ProofOptions& options, Findings& findings, base::Log& log);

}  // namespace cairn::study
