#include "elastic/diagnosis/finding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cairn::elastic {

std::string_view name(Cause cause) {
  switch (cause) {
    case Cause::dead:
      return "dead";
    case Cause::frozen:
      return "frozen";
    case Cause::stuck:
      return "stuck";
    case Cause::late_data:
      return "late data";
    case Cause::stalled_path:
      return "stalled path";
    case Cause::deadlock:
      return "deadlock";
    case Cause::slow_path:
      return "slow path";
    case Cause::slow_sender:
      return "slow sender";
    case Cause::slow_receiver:
      return "slow receiver";
    case Cause::slow_nic:
      return "slow network card";
    case Cause::straggler:
      return "straggler";
  }
  return "unknown";
}

std::string to_line(const Finding& finding) {
  std::string line = fmt::format("{}: rank {}", name(finding.cause), finding.rank);
  if (finding.peer >= 0) line += fmt::format(" to rank {}", finding.peer);
  if (!finding.host.empty()) line += fmt::format(" on {}", finding.host);
  line += ": " + finding.evidence;
  if (!finding.victims.empty())
    line += fmt::format("; rank{} {} wait{}", finding.victims.size() == 1 ? "" : "s", fmt::join(finding.victims, " "),
                        finding.victims.size() == 1 ? "s" : "");
  if (!finding.operation.empty()) line += " in " + finding.operation;
  return line;
}

}  // namespace cairn::elastic
